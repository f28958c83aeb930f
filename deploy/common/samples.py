"""Samples: what a host and its ranks did at one moment, as its agent measured it.

`runs/JOB/samples.jsonl.gz` has a line for each (deploy/jobs/sample_file.py); docs/reference/samples.md
describes the fields. Everything but the time and the host may be None: not measured, or not there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

# Bounds above what any host has: a number beyond them is wrong, and would spoil every scale.
MOST_BYTES, MOST_SHARE, MOST_CORES = 1 << 60, 1.0, 1 << 16
MOST_RANKS, MOST_GPUS, MOST_NAME = 1 << 12, 1 << 8, 256


def _number(most: float, *, least: float = 0.0) -> Callable[[Any], float]:
    """Reads a number within bounds."""

    def read(value: Any) -> float:
        if type(value) not in {int, float} or not least <= value <= most or not math.isfinite(value):
            raise ValueError(f"expected a number from {least:g} to {most:g}, got {str(value)[:40]}")
        return float(value)

    return read


def _whole(most: int) -> Callable[[Any], int]:
    """Reads a whole number from 0 on."""

    def read(value: Any) -> int:
        if type(value) is not int or not 0 <= value <= most:
            raise ValueError(f"expected a whole number from 0 to {most}, got {str(value)[:40]}")
        return value

    return read


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MOST_NAME:
        raise ValueError(f"expected a text of at most {MOST_NAME} characters, got {str(value)[:40]}")
    return value


def _list(kind: type[Any], most: int) -> Callable[[Any], tuple[Any, ...]]:
    """Reads a list of records."""

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > most:
            raise ValueError(f"expected a list of at most {most}, got {str(value)[:40]}")
        return tuple(_record(kind, item) for item in value)

    return read


def _object(kind: type[Any]) -> Callable[[Any], Any]:
    """Reads one record."""
    return lambda value: _record(kind, value)


def _by(read: Callable[[Any], Any], **given: Any) -> Any:
    """A field that `read` checks; None unless another default is given."""
    return field(**{"default": None, **given}, metadata={"read": read})


def _needed(read: Callable[[Any], Any]) -> Any:
    return field(metadata={"read": read})


_BYTES, _RATE, _DEGREES = _whole(MOST_BYTES), _number(float(MOST_BYTES)), _number(1000.0, least=-273.15)


@dataclass(frozen=True)
class GpuSample:
    """One GPU of a host."""

    index: int = _needed(_whole(MOST_GPUS))
    name: str | None = _by(_text)
    utilisation: float | None = _by(_number(MOST_SHARE))
    """Share of the time in which it computed, 0 to 1."""
    memory: int | None = _by(_BYTES)
    memory_total: int | None = _by(_BYTES)
    power: float | None = _by(_number(1e5))
    """Watts."""
    temperature: float | None = _by(_DEGREES)
    """Degrees Celsius."""
    clock: float | None = _by(_number(1e5))
    """MHz of its multiprocessors."""
    ecc: int | None = _by(_whole(1 << 40))
    """Errors of its memory that could not be corrected, since its driver was loaded."""


@dataclass(frozen=True)
class RankSample:
    """One rank, with every process that it has started."""

    rank: int = _needed(_whole(1 << 20))
    cpu: float | None = _by(_number(MOST_CORES))
    """Cores used: 1.0 is one core all the time."""
    memory: int | None = _by(_BYTES)
    """Resident bytes; memory that its processes share counts for each."""
    threads: int | None = _by(_whole(1 << 22))
    state: str | None = _by(_text)
    """As in proc(5): R runs, S sleeps, D waits in the kernel, T is stopped."""
    read: float | None = _by(_RATE)
    """Bytes per second from file systems, pipes and sockets, also what was cached."""
    written: float | None = _by(_RATE)


@dataclass(frozen=True)
class TrainingSample:
    """The newest line of `steps.jsonl` on the host that writes it."""

    step: int = _needed(_whole(1 << 53))
    loss: float | None = _by(_number(1e300, least=-1e300))
    step_seconds: float | None = _by(_number(1e9))
    samples_per_second: float | None = _by(_number(1e15))
    time: float | None = _by(_number(1e12))
    """When the step had ended, by the host's clock."""


@dataclass(frozen=True)
class HostSample:
    """One host and its ranks. Memory and /dev/shm in bytes; rates in bytes per second."""

    at: float = _needed(_number(1e12))
    """Seconds since 1970, by the driver's clock."""
    host: str = _needed(_text)
    attempt: int = _by(_whole(1 << 20), default=0)
    cpus: int | None = _by(_whole(MOST_CORES))
    load: float | None = _by(_number(1e6))
    """Processes that run or wait, over the last minute."""
    cpu: float | None = _by(_number(MOST_SHARE))
    """Share of all cores that was busy, 0 to 1."""
    memory: int | None = _by(_BYTES)
    memory_total: int | None = _by(_BYTES)
    swap: int | None = _by(_BYTES)
    net_in: float | None = _by(_RATE)
    net_out: float | None = _by(_RATE)
    disk_read: float | None = _by(_RATE)
    disk_write: float | None = _by(_RATE)
    shm: int | None = _by(_BYTES)
    shm_total: int | None = _by(_BYTES)
    temperature: float | None = _by(_DEGREES)
    """The hottest processor or board sensor, in degrees Celsius."""
    gpus: tuple[GpuSample, ...] = _by(_list(GpuSample, MOST_GPUS), default=())
    ranks: tuple[RankSample, ...] = _by(_list(RankSample, MOST_RANKS), default=())
    training: TrainingSample | None = _by(_object(TrainingSample))  # noqa: RUF009  # a field(), no value


def of_json(value: Any) -> HostSample:
    """The sample that a plain value describes; ValueError for anything else. Unknown fields are ignored."""
    sample: HostSample = _record(HostSample, value)
    return sample


def of_line(line: str | bytes) -> HostSample:
    """The sample of a line of samples.jsonl; ValueError for what is no sample."""
    try:
        return of_json(json.loads(line))
    except RecursionError:
        raise ValueError("values nested too deep") from None


def as_line(sample: HostSample) -> str:
    """A sample as a line of samples.jsonl, with its newline; what was not measured is left out."""
    return json.dumps(asdict(sample, dict_factory=_known), separators=(",", ":")) + "\n"


def _record(kind: type[Any], value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"expected an object, got {str(value)[:40]}")
    try:
        read = {
            entry.name: entry.metadata["read"](value[entry.name])
            for entry in fields(kind)
            if value.get(entry.name) is not None
        }
        return kind(**read)
    except TypeError:  # what is needed is missing
        raise ValueError(f"a {kind.__name__} without what it needs") from None


def _known(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in items if value is not None and value != ()}
