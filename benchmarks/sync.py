"""The cost of DDP in a training step: medians, and ratios to no communication.

    mpirun -n 2 --bind-to none .venv/bin/python benchmarks/sync.py --rounds 9

All strategies train in one job, in turn (A B C A B C ...), each a copy of the network, with one thread per
rank. A round of a strategy is a few steps after an uncounted step. Its time is the slowest rank's.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from tools.architectures import Architecture, architecture  # type: ignore[import-not-found]
from torch.nn.functional import cross_entropy

from muster.train.job.group import Job, process_group
from muster.train.job.ranks import Ranks
from muster.train.replicas import synchronise

CHOICES = ("ddp", "none")
STEPS = {"resnet26": (16, 4), "mlp": (32, 2)}  # images per rank and step, steps per round


def build(sync: str, name: str, group: Job) -> tuple[torch.nn.Module, torch.optim.Optimizer, Architecture]:
    """Build a copy of the network `name`, trained as one of CHOICES says."""
    torch.manual_seed(0)
    built = architecture(name)
    model = synchronise(built.network, group) if sync == "ddp" else built.network
    return model, torch.optim.SGD(model.parameters(), lr=0.01), built


def step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor
) -> None:
    """Take one step of training."""
    optimizer.zero_grad()
    torch.autograd.backward(cross_entropy(model(images), labels))
    optimizer.step()


def measure(name: str, titles: Sequence[str], rounds: int, group: Job) -> dict[str, list[float]]:
    """Return, for each strategy, the milliseconds per step of each round."""
    batch, steps = STEPS[name]
    built_of = {title: build(title, name, group) for title in titles}
    times: dict[str, list[float]] = {title: [] for title in titles}
    for round_number in range(rounds + 1):
        for title, (model, optimizer, built) in built_of.items():
            images, labels = torch.randn(batch, *built.shape), torch.randint(built.classes, (batch,))
            step(model, optimizer, images, labels)
            dist.barrier()
            began = time.perf_counter()
            for _ in range(steps):
                step(model, optimizer, images, labels)
            taken = torch.tensor((time.perf_counter() - began) / steps * 1000)
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            if round_number > 0:  # the first round warms up
                times[title].append(float(taken))
    return times


def report(name: str, times: Mapping[str, Sequence[float]]) -> str:
    """Return a table of the strategies."""
    lines = [
        f"| {name}, gradients | ms per step, median (min-max) | to ddp | to none |",
        "|---|---|---|---|",
    ]
    for title, row in times.items():
        spread = f"{statistics.median(row):.1f} ({min(row):.1f}-{max(row):.1f})"
        ratios = (_ratio(row, times.get(other)) for other in ("ddp", "none"))
        lines.append(f"| {title} | {spread} | {' | '.join(ratios)} |")
    return "\n".join([*lines, ""])


def _ratio(row: Sequence[float], others: Sequence[float] | None) -> str:
    """Return the median of the ratios round by round: what slows the machine in a round slows both."""
    return f"{statistics.median(a / b for a, b in zip(row, others, strict=True)):.2f}" if others else "-"


def main() -> None:
    """Measure every network and strategy, and print the tables on rank 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--networks", nargs="+", default=list(STEPS), choices=STEPS)
    parser.add_argument("--strategies", nargs="+", default=CHOICES, choices=CHOICES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with process_group(Ranks.from_env(os.environ), backend="gloo") as group:
        before = os.getloadavg()[0]
        tables = [
            report(name, measure(name, options.strategies, options.rounds, group))
            for name in options.networks
        ]
        if group.rank == 0:
            sys.stdout.write(
                f"{group.world_size} ranks on {platform.machine()}, {os.cpu_count()} cores, torch "
                f"{torch.__version__}, load {before:.1f} before, {options.rounds} rounds\n\n"
                + "\n".join(tables)
            )


if __name__ == "__main__":
    main()
