"""Measure what each host does on its own: memory, matrices and disk.

    muster bench hosts                          one rank on each host, and a report
    torchrun --nproc-per-node 1 ... -m muster.deploy.features.bench.programs.host_speed     without a report

A rank prints a JSON line for each figure; more is better in all of them. A rank uses the cores that a rank of
a training on this host would have. The disk is that of --folder, by default of the folder for results.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from muster.train.job.group import Job, out_folder
from muster.train.job.hardware import wait_for_gpu
from muster.train.options import OUTPUT, RANKS, RankOptions, option

from .tool import report, run

MIB = 1 << 20
GPU_MEBIBYTES = 256  # several times its cache
TYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class HostConfig(RankOptions):
    """Measure what each host does on its own."""

    timeout: float = option(RANKS, 300.0, "seconds to wait for other ranks")
    seconds: float = option(OUTPUT, 0.5, "how long to measure each figure, at least")
    mebibytes: int = option(OUTPUT, 256, "size of the files and of the copied memory")
    matrix: int = option(OUTPUT, 1024, "rows of the matrices; on a GPU eight times as many")
    folder: str = option(OUTPUT, "", "where to write and read a file (default: the folder for results)")
    in_turn: bool = option(OUTPUT, False, "one host at a time, for hosts that are one machine")


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured, and how much of it in a second."""

    name: str
    value: float
    unit: str


def main() -> None:
    """Run the tool."""
    run("python -m muster.deploy.features.bench.programs.host_speed", HostConfig, show)


def show(group: Job, config: HostConfig) -> int:
    """Measure this host and print every figure; returns the exit status."""
    group.barrier()
    for turn in range(group.world_size if config.in_turn else 1):
        if not config.in_turn or turn == group.rank:
            for figure in figures(config, out_folder(os.environ)):
                report("host", **asdict(figure))
        group.barrier()
    return 0


def figures(config: HostConfig, folder: Path) -> Iterator[Figure]:
    """Measure one thing after the other. What a host cannot do is left out."""
    yield copies("memory copy", config, torch.device("cpu"))
    yield from _matrices("", config, torch.device("cpu"), config.matrix)
    for number in range(torch.cuda.device_count()):
        device = torch.device("cuda", number)
        yield copies(f"gpu{number} memory copy", config, device)
        yield from _matrices(f"gpu{number} ", config, device, 8 * config.matrix)
    yield from _disk(config, Path(config.folder) if config.folder else folder)


def rate(work: Callable[[], object], seconds: float, device: torch.device | None = None) -> float:
    """Return how often `work` is done in a second.

    A GPU is waited for once in many calls, so that the wait is no part of each. The calls that find out how
    many do not count; they also raise the clock of an idle GPU.
    """

    def timed(calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            work()
        wait_for_gpu(device)
        return time.perf_counter() - began

    timed(1)  # loads kernels and libraries
    calls, taken = 1, timed(1)
    while taken < seconds / 4:
        calls *= 2
        taken = timed(calls)
    if taken >= seconds:  # seconds, where a type has no fast kernel; a second look would double them
        return calls / taken
    rounds = max(2, math.ceil(seconds / taken))
    return rounds * calls / sum(timed(calls) for _ in range(rounds))


def copies(name: str, config: HostConfig, device: torch.device) -> Figure:
    """Read and write memory; both count."""
    mebibytes = config.mebibytes if device.type == "cpu" else max(config.mebibytes, GPU_MEBIBYTES)
    source = torch.arange(256, dtype=torch.uint8, device=device).repeat(mebibytes * MIB // 256)
    target = torch.empty_like(source)
    per_second = rate(lambda: target.copy_(source), config.seconds, device)
    return Figure(name, 2 * source.numel() * per_second / 1e9, "GB/s")


def _matrices(prefix: str, config: HostConfig, device: torch.device, rows: int) -> Iterator[Figure]:
    """Multiply square matrices of each type."""
    for name in TYPES:
        try:
            yield product(prefix, name, config, device, rows)
        except RuntimeError:  # a type that this device cannot multiply
            continue


def product(prefix: str, name: str, config: HostConfig, device: torch.device, rows: int) -> Figure:
    """Multiply square matrices of a type: 2 n^3 operations each.

    The numbers are random: for equal ones a GPU uses less power, and its clock is higher than in a training.
    """
    left, right = (torch.randn(rows, rows, device=device).to(TYPES[name]) for _ in range(2))
    result = torch.empty_like(left)
    per_second = rate(lambda: torch.mm(left, right, out=result), config.seconds, device)
    return Figure(f"{prefix}matmul {name}", 2 * rows**3 * per_second / 1e9, "GFLOP/s")


def _disk(config: HostConfig, folder: Path) -> Iterator[Figure]:
    """Write a file to the disk itself, and read it from there; nothing if there is no room."""
    path, content = folder / f"muster-bench-{os.getpid()}", os.urandom(MIB)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield Figure(
            "disk write", config.mebibytes * MIB / _write(path, content, config.mebibytes) / 1e9, "GB/s"
        )
        yield Figure("disk read", config.mebibytes * MIB / _read(path) / 1e9, "GB/s")
    except OSError as error:
        sys.stderr.write(f"disk: {error}\n")
    finally:
        path.unlink(missing_ok=True)


def _write(path: Path, content: bytes, times: int) -> float:
    """Return the seconds until every byte is on the disk."""
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(times):
            file.write(content)
        os.fsync(file.fileno())
    return time.perf_counter() - began


def _read(path: Path) -> float:
    """Return the seconds to read the file, of which the kernel is asked to keep nothing."""
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.perf_counter()
        while file.read(MIB):
            pass
        return time.perf_counter() - began


if __name__ == "__main__":
    main()
