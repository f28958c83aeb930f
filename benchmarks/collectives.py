"""all_reduce and a DDP step on the MPI backend, beside Gloo, raw mpi4py and, if available, torch's own MPI.

    mpirun -np 2 --bind-to none .venv/bin/python benchmarks/collectives.py --rounds 9
    mpirun -np 2 --bind-to none .venv/bin/python benchmarks/collectives.py --rounds 9 --ddp
    mpirun -np 2 --bind-to none .venv/bin/python benchmarks/collectives.py --smallest 1048576 --busy 1

All contestants run in one job, in turn (A B C A B C ...), with one thread for each rank, in place, in
float32. A round is many calls of one size; its time is that of the median call on the slowest rank.
`--busy 1` runs a busy loop beside the ranks. Bus bandwidth is as nccl-tests define it (doc/PERFORMANCE.md):
for all_reduce of S bytes over n ranks in t seconds, S/t * 2(n-1)/n.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from muster.train import mpi_backend
from muster.train.job.ranks import Ranks
from muster.train.job.rendezvous import rendezvous_store
from muster.train.mpi_backend.direct import MPI

SIZES = [4 * 4**power for power in range(13)]  # 4 B to 64 MiB
Call = Callable[[torch.Tensor], object]
BUSY = "import time\nend = time.monotonic() + 600\nwhile time.monotonic() < end: pass"  # ends on its own


def contestants() -> dict[str, Call]:
    """Return each contestant as a function that sums a tensor in place over all ranks."""
    groups = {"ours": dist.new_group(backend=mpi_backend.register()), "Gloo": dist.group.WORLD}
    if dist.is_mpi_available():
        groups["built-in MPI"] = dist.new_group(backend="mpi")
    calls: dict[str, Call] = {
        name: lambda tensor, group=group: dist.all_reduce(tensor, group=group)  # type: ignore[misc]
        for name, group in groups.items()
    }
    calls["raw mpi4py"] = lambda tensor: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, tensor.numpy())
    return calls


def calls_per_round(size: int) -> int:
    """Return how many calls take about 20 ms, long enough that clock and scheduler do not matter."""
    return max(5, min(500, 2**24 // size))


def measure(
    calls: Mapping[str, Call], sizes: Sequence[int], rounds: int
) -> dict[tuple[str, int], list[float]]:
    """Return the seconds of a call in each round, by contestant and size in bytes."""
    taken: dict[tuple[str, int], list[float]] = {}
    for round_number in range(rounds + 1):
        for size in sizes:
            tensor = torch.zeros(size // 4)
            for name, call in calls.items():
                seconds = timed(lambda: call(tensor), calls_per_round(size))  # noqa: B023 - called at once
                if round_number > 0:  # the first warms up
                    taken.setdefault((name, size), []).append(seconds)
    return taken


def timed(call: Callable[[], object], times: int) -> float:
    """Return the seconds of the median call, of the slowest rank.

    Calls in which a busy machine took the core away for milliseconds would dominate the mean.
    """
    MPI.COMM_WORLD.Barrier()
    clock = [time.perf_counter()]
    for _ in range(times):
        call()
        clock.append(time.perf_counter())
    median = statistics.median(after - before for before, after in itertools.pairwise(clock))
    return float(MPI.COMM_WORLD.allreduce(median, MPI.MAX))


def table(taken: Mapping[tuple[str, int], Sequence[float]], ranks: int) -> list[str]:
    """Medians in microseconds, our bus bandwidth, and the median ratio of our time to each other's."""
    names = list(dict.fromkeys(name for name, _ in taken))
    others = [name for name in names if name != "ours"]
    head = [*(f"{name}, us" for name in names), "ours, busbw GB/s", *(f"ours / {name}" for name in others)]
    lines = [f"| bytes | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for size in dict.fromkeys(size for _, size in taken):
        ours = taken["ours", size]
        cells = [f"{statistics.median(taken[name, size]) * 1e6:.0f}" for name in names]
        cells.append(f"{size / statistics.median(ours) * 2 * (ranks - 1) / ranks / 1e9:.2f}")
        cells += [f"{ratio(ours, taken[name, size]):.2f}" for name in others]
        lines.append(f"| {size} | {' | '.join(cells)} |")
    return lines


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the ratios, round by round."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def networks() -> dict[str, nn.Module]:
    """Return the contestants of a DDP step: copies of a network of 25 million parameters, one without DDP."""
    made = {}
    for name in ("ours", "Gloo", "no communication"):
        torch.manual_seed(0)
        made[name] = nn.Sequential(
            nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)
        )
    groups = {"ours": dist.new_group(backend=mpi_backend.register()), "Gloo": dist.group.WORLD}
    parallel = {
        name: DistributedDataParallel(made[name], process_group=group) for name, group in groups.items()
    }
    return {**parallel, "no communication": made["no communication"]}


def measure_ddp(rounds: int) -> dict[str, list[float]]:
    """Return the seconds of a step, forward and backward, of each contestant in each round."""
    images = torch.randn(32, 1024)
    taken: dict[str, list[float]] = {}
    models = networks()
    for round_number in range(rounds + 1):
        for name, model in models.items():
            seconds = timed(lambda: step(model, images), 3)  # noqa: B023 - called at once
            if round_number > 0:
                taken.setdefault(name, []).append(seconds)
    return taken


def step(model: nn.Module, images: torch.Tensor) -> None:
    """Take a forward and a backward pass."""
    model.zero_grad()
    torch.autograd.backward(model(images).square().mean())


def ddp_table(taken: Mapping[str, Sequence[float]]) -> list[str]:
    """Medians in milliseconds, and as multiples of Gloo's, round by round."""
    lines = ["| DDP over | step, ms | / Gloo |", "|---|---|---|"]
    for name, seconds in taken.items():
        lines.append(
            f"| {name} | {statistics.median(seconds) * 1e3:.0f} | {ratio(seconds, taken['Gloo']):.2f} |"
        )
    return lines


@contextmanager
def other_work(loops: int) -> Iterator[None]:
    """Keep `loops` cores busy during the block, each with a process."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    """Run the rounds, and print the table on rank 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--smallest", type=int, default=SIZES[0], help="bytes; leaves out what is smaller")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="bytes; leaves out what is larger")
    parser.add_argument("--busy", type=int, default=0, help="busy loops that run beside the ranks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ranks = Ranks.from_env(os.environ)
    timeout = timedelta(minutes=2)
    with rendezvous_store("auto", ranks, timeout, os.environ) as store:
        dist.init_process_group(
            "gloo", timeout=timeout, store=store, rank=ranks.rank, world_size=ranks.world_size
        )
        with other_work(options.busy if ranks.rank == 0 else 0):
            if options.ddp:
                lines = ddp_table(measure_ddp(options.rounds))
            else:
                sizes = [size for size in SIZES if options.smallest <= size <= options.largest]
                lines = table(measure(contestants(), sizes, options.rounds), ranks.world_size)
        if ranks.rank == 0:
            beside = f", {options.busy} busy loops beside" if options.busy else ""
            sys.stdout.write("\n".join([about(options.rounds, ranks) + beside, "", *lines]) + "\n")
        dist.barrier()
        dist.destroy_process_group()


def about(rounds: int, ranks: Ranks) -> str:
    """Describe the measurement and the machine."""
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, {ranks.world_size} ranks, torch {torch.__version__}, "
        f"load {os.getloadavg()[0]:.1f} at the end; {rounds} rounds, contestants in turn, medians"
    )


if __name__ == "__main__":
    main()
