"""Collectives and a DDP step on the MPI backend, beside Gloo, raw mpi4py and, if available, torch's own MPI.

    mpirun -np 2 --bind-to none .venv/bin/python benchmarks/collectives.py --rounds 9
    mpirun -np 2 --bind-to none .venv/bin/python benchmarks/collectives.py --rounds 9 --ddp
    mpirun -np 2 --bind-to none .venv/bin/python benchmarks/collectives.py --operations all_reduce --busy 1

All contestants run in one job, in turn (A B C A B C ...), with one thread for each rank, in float32, and
all_reduce in place. A round is many calls of one size; its time is that of the median call on the slowest
rank. `--busy 1` runs a busy loop beside the ranks.
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

SIZES = [4, 2**10, 2**16, 2**20, 2**22, 2**24, 2**26]  # 4 B to 64 MiB
OPERATIONS = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
)
Call = Callable[[], object]
BUSY = "import time\nend = time.monotonic() + 600\nwhile time.monotonic() < end: pass"  # ends on its own


class Tensors:
    """What the operations move, on each rank: `whole` and `other` of about `size` bytes, and a rank's part.

    As nccl-tests count: the size is that of the larger of a rank's input and output.
    """

    def __init__(self, size: int) -> None:
        ranks = MPI.COMM_WORLD.size
        self.part = torch.zeros(max(1, size // 4 // ranks))
        self.whole, self.other = torch.zeros(2, self.part.numel() * ranks).unbind()
        self.exact = torch.zeros(size // 4)  # for operations that do not divide it
        self.parts = list(self.whole.chunk(ranks))


def contestants(operation: str, size: int, groups: Mapping[str, dist.ProcessGroup]) -> dict[str, Call]:
    """Return `operation` on tensors of `size` bytes, by contestant: the groups, and mpi4py alone."""
    made = Tensors(size)
    calls = {name: of_torch(operation, made, group) for name, group in groups.items()}
    return {**calls, "raw mpi4py": of_mpi4py(operation, made)}


def process_groups() -> dict[str, dist.ProcessGroup]:
    """Return a group of all ranks over each backend."""
    groups = {"ours": dist.new_group(backend=mpi_backend.register()), "Gloo": dist.group.WORLD}
    if dist.is_mpi_available():
        groups["built-in MPI"] = dist.new_group(backend="mpi")
    return groups


def of_torch(operation: str, on: Tensors, group: dist.ProcessGroup) -> Call:
    """Return a call of torch.distributed."""
    at_root = on.parts if dist.get_rank() == 0 else None
    # torch 2.13 warns in each call of the names of 2.12, which takes microseconds.
    reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    calls: dict[str, Call] = {
        "all_reduce": lambda: dist.all_reduce(on.exact, group=group),
        "reduce_scatter": lambda: reduce_scatter(on.part, on.whole, group=group),
        "all_gather": lambda: all_gather(on.whole, on.part, group=group),
        "all_to_all": lambda: dist.all_to_all_single(on.other, on.whole, group=group),
        "broadcast": lambda: dist.broadcast(on.exact, 0, group=group),
        "reduce": lambda: dist.reduce(on.exact, 0, group=group),
        "gather": lambda: dist.gather(on.part, at_root, 0, group=group),
        "scatter": lambda: dist.scatter(on.part, at_root, 0, group=group),
    }
    return calls[operation]


def of_mpi4py(operation: str, on: Tensors) -> Call:
    """Return the same call of mpi4py, on arrays that are made before."""
    comm, here = MPI.COMM_WORLD, MPI.IN_PLACE
    part, whole, other, exact = (each.numpy() for each in (on.part, on.whole, on.other, on.exact))
    at_root = whole if comm.rank == 0 else None
    calls: dict[str, Call] = {
        "all_reduce": lambda: comm.Allreduce(here, exact),
        "reduce_scatter": lambda: comm.Reduce_scatter_block(whole, part),
        "all_gather": lambda: comm.Allgather(part, whole),
        "all_to_all": lambda: comm.Alltoall(whole, other),
        "broadcast": lambda: comm.Bcast(exact, 0),
        "reduce": lambda: comm.Reduce(here, exact) if comm.rank == 0 else comm.Reduce(exact, None),
        "gather": lambda: comm.Gather(part, at_root, 0),
        "scatter": lambda: comm.Scatter(at_root, part, 0),
    }
    return calls[operation]


def calls_per_round(size: int) -> int:
    """Return how many calls take about 20 ms, long enough that clock and scheduler do not matter."""
    return max(5, min(500, 2**24 // size))


def measure(
    operation: str, groups: Mapping[str, dist.ProcessGroup], sizes: Sequence[int], rounds: int
) -> dict[tuple[str, int], list[float]]:
    """Return the seconds of a call in each round, by contestant and size in bytes."""
    taken: dict[tuple[str, int], list[float]] = {}
    calls = {size: contestants(operation, size, groups) for size in sizes}
    for round_number in range(rounds + 1):
        for size in sizes:
            for name, call in calls[size].items():
                seconds = timed(call, calls_per_round(size))
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


def tables(taken: Mapping[str, Mapping[tuple[str, int], Sequence[float]]]) -> list[str]:
    """The median calls by operation and size: ours in microseconds, and as multiples of each other's."""
    pairs = list(dict.fromkeys(pair for of_operation in taken.values() for pair in of_operation))
    sizes = list(dict.fromkeys(size for _, size in pairs))
    lines = []
    for name in dict.fromkeys(name for name, _ in pairs):
        title = "ours, us" if name == "ours" else f"ours / {name}"
        lines += [f"| {title} | {' | '.join(map(str, sizes))} |", "|---" * (len(sizes) + 1) + "|"]
        for operation, times in taken.items():
            cells = [
                f"{statistics.median(times[name, size]) * 1e6:.1f}"
                if name == "ours"
                else f"{ratio(times['ours', size], times[name, size]):.2f}"
                for size in sizes
            ]
            lines.append(f"| {operation} | {' | '.join(cells)} |")
        lines.append("")
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
    parser.add_argument("--operations", nargs="+", default=OPERATIONS, choices=OPERATIONS)
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
                groups = process_groups()
                lines = tables(
                    {name: measure(name, groups, sizes, options.rounds) for name in options.operations}
                )
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
