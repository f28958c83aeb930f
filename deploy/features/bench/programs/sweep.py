"""Time the collective operations over sizes, and check their results: by the names of nccl-tests.

    muster bench collectives all_reduce -b 8 -e 128M -f 2       with a table
    python -m muster.deploy.features.bench.programs.sweep --spawn 2      with JSON lines

It works with every backend, on CPUs and GPUs. A time is the mean over calls and ranks. It ends with 1 if a
result is wrong. An operation that a backend refuses is no failure.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch

from muster.train.job.group import Job
from muster.train.job.hardware import wait_for_gpu
from muster.train.options import OUTPUT, RANKS, RankOptions, broken, option

from .outcomes import REFUSED, RIGHT, first_line, together
from .timed_operations import OPERATIONS, TYPES, Case, Prepared, Timed
from .tool import report, run


@dataclass(frozen=True, slots=True)
class Row:
    """One size of one operation: bytes, and elements of each rank's part; microseconds of a call, GB/s.

    `wrong`: wrong elements on all ranks.
    """

    operation: str
    size: int
    count: int
    type: str
    time_us: float
    algbw: float
    busbw: float
    wrong: int


NAMES = tuple(each.name for each in OPERATIONS)


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepConfig(RankOptions):
    """Time collective operations over sizes, with names of nccl-tests."""

    timeout: float = option(RANKS, 120.0, "seconds to wait for other ranks")
    operations: str = option(OUTPUT, ",".join(NAMES), f"which, with commas between them: {', '.join(NAMES)}")
    minbytes: int = option(OUTPUT, 8, "the first size, in bytes", also=("-b",))
    maxbytes: int = option(OUTPUT, 1 << 25, "the last size, in bytes", also=("-e",))
    stepfactor: int = option(OUTPUT, 2, "from one size to the next", also=("-f",))
    iters: int = option(OUTPUT, 20, "timed calls of each size", also=("-n",))
    warmup_iters: int = option(OUTPUT, 5, "calls before them, of the last and the first size", also=("-w",))
    datatype: str = option(OUTPUT, "float", "the type", choices=tuple(TYPES), also=("-d",))

    def wrong(self) -> list[str]:
        unknown = [name for name in self.operations.split(",") if name not in NAMES]
        rules = [
            ("--minbytes", self.minbytes, self.minbytes >= 1, "at least 1"),
            ("--maxbytes", self.maxbytes, self.maxbytes >= self.minbytes, "--minbytes or more"),
            ("--stepfactor", self.stepfactor, self.stepfactor >= 2, "at least 2"),
            ("--iters", self.iters, self.iters >= 1, "at least 1"),
            ("--warmup-iters", self.warmup_iters, self.warmup_iters >= 0, "0 or more"),
            ("--operations", self.operations, not unknown, f"of {', '.join(NAMES)}"),
        ]
        return [*broken(rules), *RankOptions.wrong(self)]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Every size, in bytes."""
        sizes = [self.minbytes]
        while sizes[-1] * self.stepfactor <= self.maxbytes:
            sizes.append(sizes[-1] * self.stepfactor)
        return tuple(sizes)


class Refused(Exception):
    """The backend refuses an operation, on every rank."""


def main() -> None:
    """Run the tool."""
    run("python -m muster.deploy.features.bench.programs.sweep", SweepConfig, show)


def show(group: Job, config: SweepConfig) -> int:
    """Time every operation over all sizes, and print a line for each on rank 0; returns the exit status."""

    def tell(bench: str, **values: object) -> None:
        if group.rank == 0:
            report(bench, **values)

    wrong = 0
    tell("collectives", ranks=group.world_size, backend=group.backend, device=group.device.type)
    for operation in (each for each in OPERATIONS if each.name in config.operations.split(",")):
        try:
            for row in rows(group, config, operation):
                wrong += row.wrong
                tell("collective", **asdict(row))
        except Refused as refusal:
            tell("refused", operation=operation.name, message=str(refusal)[:400])
    return 1 if wrong else 0


def rows(group: Job, config: SweepConfig, operation: Timed) -> Iterator[Row]:
    """Measure one operation, size after size. A size with less than an element for each part is left out."""
    sizes = [each for each in config.sizes if _case(group, config, operation, each).count]
    if not sizes:
        return
    _try(group, _case(group, config, operation, sizes[0]), operation)
    for each in (sizes[-1], sizes[0]):
        prepared = operation.prepare(_case(group, config, operation, each))
        _timed(prepared, config.warmup_iters, group.device)
    for each in sizes:
        yield _row(group, config, operation, each)


def _case(group: Job, config: SweepConfig, operation: Timed, each: int) -> Case:
    dtype = TYPES[config.datatype]
    elements = each // dtype.itemsize
    count = elements // group.world_size if operation.parts else elements
    return Case(group.rank, group.world_size, group.device, dtype, count)


def _try(group: Job, case: Case, operation: Timed) -> None:
    """Call it once; `Refused` if every rank refuses it. RuntimeError if only some do: the others hang."""
    try:
        prepared = operation.prepare(case)
        prepared.fill()
        prepared.call()
        wait_for_gpu(group.device)
        outcome = (RIGHT, "")
    except Exception as error:  # noqa: BLE001 - a backend may raise anything; its message is the result
        outcome = (REFUSED, first_line(error))
    of_all, message = together(group.all_gather(outcome, tuple[str, str]))
    if of_all == REFUSED:
        raise Refused(message)
    if of_all != RIGHT:
        raise RuntimeError(f"{operation.name}: {message}")


def _row(group: Job, config: SweepConfig, operation: Timed, each: int) -> Row:
    case = _case(group, config, operation, each)
    prepared = operation.prepare(case)
    prepared.fill()
    seconds = _timed(prepared, config.iters, group.device, group)
    moved = case.count * case.dtype.itemsize * (case.ranks if operation.parts else 1)
    algbw = moved / seconds / 1e9
    return Row(
        operation=operation.name,
        size=moved,
        count=case.count,
        type=config.datatype,
        time_us=seconds * 1e6,
        algbw=algbw,
        busbw=algbw * operation.bus(case.ranks),
        wrong=_wrong(prepared, group),
    )


def _timed(prepared: Prepared, calls: int, device: torch.device, group: Job | None = None) -> float:
    """Return the seconds of a call, of `calls`; with a group, the mean of all ranks, which begin together."""
    if group:
        prepared.call()
        wait_for_gpu(device)
        group.barrier()
    began = time.perf_counter()
    for _ in range(calls):
        prepared.call()
    wait_for_gpu(device)
    seconds = (time.perf_counter() - began) / max(1, calls)
    return group.all_reduce_sum(seconds)[0] / group.world_size if group else seconds


def _wrong(prepared: Prepared, group: Job) -> int:
    """Return how many elements are wrong after one call, on all ranks together."""
    prepared.fill()
    group.barrier()
    prepared.call()
    wait_for_gpu(group.device)
    got, right = (tensor.to(torch.float64) for tensor in (prepared.got, prepared.right))
    same = torch.isclose(got, right, rtol=1e-5 if prepared.got.dtype.itemsize >= 4 else 2e-2, atol=0)
    return round(group.all_reduce_sum(float((~same).sum()))[0])


if __name__ == "__main__":
    main()
