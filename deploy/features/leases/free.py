"""The table of `muster free`: who has the GPUs of hosts. It reads the time zone."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ...core.hosts.hostfile import Host
from ...core.text.terminal import harmless
from ...core.text.text import count, duration, ranges, table
from .drained import Drained, Entries
from .messages import Device, HostLeases

COLUMNS = ("host", "what", "state", "user", "job", "since", "for")
DAY = 86400.0


def free_table(
    hosts: Iterable[Host], leases: Mapping[str, HostLeases], now: float, drained: Entries = ()
) -> list[str]:
    """A line for each group of devices with the same holder, and one for each job that waits."""
    known = [(host, leases[host.name]) for host in hosts if host.name in leases]
    rows = [row for host, found in known for row in _rows(host, found, now, drained)]
    return [
        *table([COLUMNS, *rows]),
        *(line for host, found in known for line in _notes(host.name, found, now)),
    ]


def drained_line(entry: Drained, now: float) -> str:
    """`node7 is drained since 14:05 by alice: fan broken`."""
    return harmless(f"{entry.host} is drained since {_clock(entry.at, now)} by {entry.by}: {entry.why}")


def _rows(host: Host, leases: HostLeases, now: float, drained: Entries) -> Iterator[tuple[str, ...]]:
    entry = {entry.host: entry for entry in drained}.get(host.name)
    yield from _grouped(host.name, "GPU" if leases.kind != "ascend" else "NPU", leases.gpus, entry, now)
    if not leases.gpus:
        yield (host.name, "no GPU", *("-",) * 5)


def _grouped(
    host: str, what: str, devices: Iterable[Device], entry: Drained | None, now: float
) -> Iterator[tuple[str, ...]]:
    """The lines of a host. A device of a drained host that a job still has is shown with that job."""
    groups: dict[tuple[str, Device], list[int]] = {}
    for device in devices:
        state = "free" if device.is_free else "leased" if device.job else "in use"
        holder = replace(device, index=0, name="-")
        if entry and device.is_free:
            state, holder = "drained", replace(holder, user=entry.by, process=entry.why, since=entry.at)
        groups.setdefault((state, holder), []).append(device.index)
    for (state, holder), numbers in groups.items():
        since = (
            (_clock(holder.since, now), duration(max(0.0, now - holder.since)))
            if holder.since
            else ("-", "-")
        )
        named = f"{what}{'s' * (len(numbers) > 1)} {ranges(numbers)}"
        yield (host, named, state, holder.user or "-", holder.job or holder.process or "-", *since)


def _clock(at: float, now: float) -> str:
    """`14:05`, with the date if it is not of the last day."""
    return time.strftime("%H:%M" if now - at < DAY else "%Y-%m-%d %H:%M", time.localtime(at))


def _notes(host: str, leases: HostLeases, now: float) -> Iterator[str]:
    if leases.problem:
        yield f"{host}: {leases.problem}"
    for place, job in enumerate(leases.waiting, 1):
        wants = f"{count(job.number, 'device')} for {duration(max(0.0, now - job.since))}"
        yield f"{host}: {place}. in the queue: job {job.job} of {job.user}, waits for {wants}"
