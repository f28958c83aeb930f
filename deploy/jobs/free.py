"""The table of `muster free`: who has the GPUs and slots of hosts. It reads the time zone."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ..console.text import count, duration, ranges, table
from ..hosts.hostfile import Host
from ..hosts.leases import Device, HostLeases

COLUMNS = ("host", "what", "state", "user", "job", "since", "for")
DAY = 86400.0


def free_table(hosts: Iterable[Host], leases: Mapping[str, HostLeases], now: float) -> list[str]:
    """A line for each group of devices with the same holder, and one for each job that waits."""
    known = [(host, leases[host.name]) for host in hosts if host.name in leases]
    rows = [row for host, found in known for row in _rows(host, found, now)]
    return [
        *table([COLUMNS, *rows]),
        *(line for host, found in known for line in _notes(host.name, found, now)),
    ]


def all_slots(host: Host, leases: HostLeases) -> list[Device]:
    """Every slot of a host in the hosts file, leased or free; another user's file may have more."""
    leased = {slot.index: slot for slot in leases.slots}
    numbers = sorted({*range(host.slots), *leased})
    return [leased.get(number, Device(number, f"slot-{number}")) for number in numbers]


def _rows(host: Host, leases: HostLeases, now: float) -> Iterator[tuple[str, ...]]:
    yield from _grouped(host.name, "GPU" if leases.kind != "ascend" else "NPU", leases.gpus, now)
    if leases.slots or not leases.gpus:  # slots count where somebody leases them, or nothing else is there
        yield from _grouped(host.name, "slot", all_slots(host, leases), now)


def _grouped(host: str, what: str, devices: Iterable[Device], now: float) -> Iterator[tuple[str, ...]]:
    groups: dict[Device, list[int]] = {}
    for device in devices:
        groups.setdefault(replace(device, index=0, name="-"), []).append(device.index)
    for holder, numbers in groups.items():
        state = "free" if holder.is_free else "leased" if holder.job else "in use"
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
        yield f"{host}: its GPUs are not known: {leases.problem}"
    for place, job in enumerate(leases.waiting, 1):
        wants = f"{count(job.number, 'device')} for {duration(max(0.0, now - job.since))}"
        yield f"{host}: {place}. in the queue: job {job.job} of {job.user}, waits for {wants}"
