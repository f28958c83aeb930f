"""How long a sharded checkpoint blocks a step, on one shared disk and on disks of their own.

    python benchmarks/sharded_checkpoints.py --ranks 3 --width 2048 --rounds 9

Every rank is a host, and its disk a folder. In each round the ranks save to both kinds of disk, in turn, and
wait for the files. Prints the medians in seconds, those of torch.save of the same shards to one file a rank,
and the memory of rank 0 in MiB.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from muster.train import Job, ShardedCheckpoints, run
from muster.train.checkpoint.parts import copied
from muster.train.checkpoint.state import taken


def measure(job: Job, folder: str, width: int, rounds: int) -> None:
    """Measure on every rank; rank 0 prints."""
    states = trained(job, width)
    memory = {"after a step": peak()}
    out = Path(folder)
    places = {"shared": out / "shared", "own": out / f"host{job.rank}"}
    made = {
        name: ShardedCheckpoints(job, place, keep=1, say=lambda _: None) for name, place in places.items()
    }
    times: dict[str, list[float]] = defaultdict(list)
    for number in range(1, rounds + 1):
        for name, checkpoints in made.items():
            begin = partial(checkpoints.save, number, states)
            times[f"{name}: the step is blocked"].append(timed(job, begin))
            times[f"{name}: until all is written"].append(timed(job, checkpoints.finish))
            memory[f"saving, {name}"] = peak()
        times["torch.save of the shards"].append(timed(job, partial(plainly, job, states, out)))
    weights = sum(weight.numel() for weight in states["model"].parameters()) / 1e6
    lines = [
        f"{job.world_size} ranks, {weights:.0f} M weights, median of {rounds}, load {os.getloadavg()[0]:.1f}"
    ]
    lines += [
        f"{name:30} {median(each):.3f} s ({min(each):.3f}-{max(each):.3f})" for name, each in times.items()
    ]
    lines += [f"{name:30} {mib:.0f} MiB" for name, mib in memory.items()]
    if job.rank == 0:
        sys.stdout.write("\n".join(lines) + "\n")


def trained(job: Job, width: int) -> dict[str, Any]:
    """Return a model of four layers after its first step, sharded over the ranks."""
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(4)))
    for layer in model:
        fully_shard(layer, mesh=job.mesh())
    fully_shard(model, mesh=job.mesh())
    optimizer = torch.optim.AdamW(model.parameters())
    torch.autograd.backward(model(torch.ones(1, width)).sum())
    optimizer.step()
    optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


def plainly(job: Job, states: dict[str, Any], out: Path) -> None:
    """Write the shards of this rank, and wait for the disk."""
    _, contents = copied(taken(states, ()), job.rank)
    with (out / f"plain-{job.rank}.pt").open("wb") as file:
        torch.save(contents, file)
        file.flush()
        os.fsync(file.fileno())


def timed(job: Job, function: Callable[[], None]) -> float:
    """Return how many seconds `function` takes on the slowest rank."""
    job.barrier()
    started = time.perf_counter()
    function()
    return max(job.all_gather(time.perf_counter() - started, float))


def peak() -> float:
    """Return the most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    made = tempfile.mkdtemp(dir=".")
    try:
        run(measure, made, options.width, options.rounds, spawn=options.ranks, backend="gloo")
    finally:
        shutil.rmtree(made)
