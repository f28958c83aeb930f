"""A sample: figures of a host and its ranks at one moment, as its agent measured them.

`runs/JOB/samples.jsonl` has a line for each; docs/reference/samples.md describes the fields. All fields
except the time and the host may be None: not measured, or not present.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from ..decode import MALFORMED, AtMost, Between, from_json
from .bounds import Name

SAMPLES = "samples.jsonl"
"""The file of a run's samples."""
# Bounds above what any host has: a number beyond them is wrong, and would spoil every scale.
MOST_CORES, MOST_RANKS, MOST_GPUS = 1 << 16, 1 << 12, 1 << 8
MOST_RANK, MOST_TIME = 1 << 20, 1e12
HOT_CPU, HOT_GPU = 95.0, 87.0  # degrees Celsius
IDLE_SHARE = 0.05
"""Helper threads wake up now and then, so a rank that uses less than a twentieth of a core is idle."""
SampleBytes = Annotated[int, Between(0, 1 << 60)]
Rate = Annotated[float, Between(0, 1 << 60)]
Share = Annotated[float, Between(0, 1)]
Degrees = Annotated[float, Between(-273.15, 1000)]


@dataclass(frozen=True)
class GpuSample:
    """One GPU of a host."""

    index: Annotated[int, Between(0, MOST_GPUS)]
    name: Name | None = None
    utilisation: Share | None = None
    """Share of the time in which it computed, 0 to 1."""
    memory: SampleBytes | None = None
    memory_total: SampleBytes | None = None
    power: Annotated[float, Between(0, 1e5)] | None = None
    """Watts."""
    temperature: Degrees | None = None
    """Degrees Celsius."""
    clock: Annotated[float, Between(0, 1e5)] | None = None
    """MHz of its multiprocessors."""
    ecc: Annotated[int, Between(0, 1 << 40)] | None = None
    """Errors of its memory that could not be corrected, since its driver was loaded."""


@dataclass(frozen=True)
class RankSample:
    """One rank, with every process that it has started."""

    rank: Annotated[int, Between(0, MOST_RANK)]
    cpu: Annotated[float, Between(0, MOST_CORES)] | None = None
    """Cores used: 1.0 is one core all the time."""
    memory: SampleBytes | None = None
    """Resident bytes; memory that its processes share counts for each."""
    threads: Annotated[int, Between(0, 1 << 22)] | None = None
    state: Name | None = None
    """As in proc(5): R runs, S sleeps, D waits in the kernel, T is stopped."""
    read: Rate | None = None
    """Bytes per second from file systems, pipes and sockets, also from the cache."""
    written: Rate | None = None
    gpus: Annotated[tuple[Annotated[int, Between(0, MOST_GPUS)], ...], AtMost(MOST_GPUS)] | None = None
    """The numbers of the GPUs that its processes use."""
    launcher: Name | None = None
    """The launcher that it has started to start ranks itself, with its program: `torchrun train.py`."""


@dataclass(frozen=True)
class TrainingSample:
    """The newest line of `steps.jsonl` on the host that writes it."""

    step: Annotated[int, Between(0, 1 << 53)]
    loss: Annotated[float, Between(-1e300, 1e300)] | None = None
    step_seconds: Annotated[float, Between(0, 1e9)] | None = None
    samples_per_second: Annotated[float, Between(0, 1e15)] | None = None
    time: Annotated[float, Between(0, 1e12)] | None = None
    """When the step had ended, by the host's clock."""


@dataclass(frozen=True)
class HostSample:
    """One host and its ranks. Memory and /dev/shm in bytes; rates in bytes per second."""

    at: Annotated[float, Between(0, MOST_TIME)]
    """Seconds since 1970, by the driver's clock."""
    host: Name
    attempt: Annotated[int, Between(0, 1 << 20)] = 0
    cpus: Annotated[int, Between(0, MOST_CORES)] | None = None
    load: Annotated[float, Between(0, 1e6)] | None = None
    """Processes that run or wait, over the last minute."""
    cpu: Share | None = None
    """Share of all cores that was busy, 0 to 1."""
    memory: SampleBytes | None = None
    memory_total: SampleBytes | None = None
    swap: SampleBytes | None = None
    net_in: Rate | None = None
    net_out: Rate | None = None
    disk_read: Rate | None = None
    disk_write: Rate | None = None
    shm: SampleBytes | None = None
    shm_total: SampleBytes | None = None
    temperature: Degrees | None = None
    """The hottest processor or board sensor, in degrees Celsius."""
    gpus: Annotated[tuple[GpuSample, ...], AtMost(MOST_GPUS)] = ()
    ranks: Annotated[tuple[RankSample, ...], AtMost(MOST_RANKS)] = ()
    training: TrainingSample | None = None


def of_json(value: Any) -> HostSample:
    """The sample that a plain value describes; ValueError for anything else. Unknown fields are ignored."""
    if isinstance(value, Mapping):
        value = {name: field for name, field in value.items() if field is not None}
    try:
        sample: HostSample = from_json(HostSample, value)
    except MALFORMED as error:
        raise ValueError(f"expected a sample: {error}") from None
    return sample


def of_line(line: str | bytes) -> HostSample:
    """The sample of a line of samples.jsonl; ValueError for any other line."""
    try:
        return of_json(json.loads(line))
    except RecursionError:
        raise ValueError("values nested too deep") from None


def as_line(sample: HostSample) -> str:
    """A sample as a line of samples.jsonl, with its newline, without fields that were not measured."""
    return json.dumps(asdict(sample, dict_factory=_measured), separators=(",", ":")) + "\n"


def _measured(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in items if value is not None and value != ()}
