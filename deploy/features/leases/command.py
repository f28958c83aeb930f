"""`muster free`, `hosts drain` and `undrain`: which GPUs are free, and which hosts launches leave out."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from ...cli.command import Command
from ...cli.inventory import hosts_or_this_machine
from ...cli.shared import HOSTS, HOSTS_ALSO, JSON, HostOptions, hosts_file_of, write_json
from ...core.connect.cluster import Cluster
from ...core.connect.fanout import ask_every
from ...core.errors import UnfitError, UsageError
from ...core.hosts import hostfile
from ...core.hosts.hostfile import Host
from ...core.plan.flags import flag
from ...core.text.columns import cut, width_of
from ...core.text.terminal import harmless
from ...core.text.text import count, duration, nearest, ranges, table
from ...core.wire.os_errors import explain
from ...core.wire.users import own_name
from . import drained
from .drained import Drained, Entries, change, clock, drained_line
from .messages import LEASES, Device, HostLeases

ASK_SECONDS = 40.0
COLUMNS = ("host", "what", "state", "user", "job", "since", "for")


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
            (clock(holder.since, now), duration(max(0.0, now - holder.since))) if holder.since else ("-", "-")
        )
        named = f"{what}{'s' * (len(numbers) > 1)} {ranges(numbers)}"
        yield (host, named, state, holder.user or "-", holder.job or holder.process or "-", *since)


def _notes(host: str, leases: HostLeases, now: float) -> Iterator[str]:
    if leases.problem:
        yield f"{host}: {leases.problem}"
    for place, job in enumerate(leases.waiting, 1):
        wants = f"{count(job.number, 'device')} for {duration(max(0.0, now - job.since))}"
        yield f"{host}: {place}. in the queue: job {job.job} of {job.user}, waits for {wants}"


@dataclass(frozen=True)
class Free(HostOptions):
    """Show which GPUs are free, and who has the others.

    It names the job, and the time since when. A launch leases its GPUs (--gpus). "In use" is a GPU that a
    process uses without a lease; "drained" names who drained it, and why.
    """

    json: bool = flag(False, JSON)

    def run(self) -> None:
        """Ask every host, and print the table.

        A host that cannot be asked is an error with status 3, unless it is drained.
        """
        inventory = hosts_or_this_machine(self)
        cluster = Cluster(inventory.hosts, inventory.open_pipe, facts=False)
        with contextlib.closing(cluster):
            errors = cluster.connect()
            asked = ask_every(cluster.channels, LEASES, ASK_SECONDS)
        errors, leases, now = {**errors, **asked.errors}, asked.results, time.time()
        entries = drained.load(self.hosts_file)
        away = [entry for entry in entries if entry.host in errors]
        if self.json:
            write_json(
                {
                    name: {
                        **asdict(found),
                        "drained": [asdict(entry) for entry in entries if entry.host == name],
                    }
                    for name, found in leases.items()
                }
            )
        else:
            width = width_of(sys.stdout)
            lines = free_table(inventory.hosts, leases, now, entries)
            for line in map(harmless, [*lines, *(drained_line(entry, now) for entry in away)]):
                sys.stdout.write(f"{cut(line, width) if width else line}\n")
        known = {entry.host for entry in away}
        if missing := {host: error for host, error in errors.items() if host not in known}:
            raise UnfitError(missing.items())


NAMES = "a host, or a range node[01-16]"


@dataclass(frozen=True)
class HostsDrain(Command):
    """Put hosts aside: no launch uses them. Running jobs continue.

    The record is drained.json, beside the hosts file; muster free shows it too.

    muster hosts drain gpu7 --why "fan broken, ticket 812"
    """

    name: tuple[str, ...] = flag((), NAMES, takes="positional", required="which hosts?")
    why: str = flag(
        "",
        "the reason, which launches and muster free show",
        "TEXT",
        required="give the reason with --why TEXT:",
    )
    hosts: str = flag("", HOSTS, "FILE", also=HOSTS_ALSO)

    def run(self) -> None:
        """Write the entries, and show them."""
        path = hosts_file_of(self.hosts)
        listed = hostfile.load(path)
        names = sorted({name for each in self.name for name in hostfile.named(each, listed, "hosts drain")})
        now, by, why = time.time(), own_name(), " ".join(self.why.split())
        new = [Drained(name, by, now, why) for name in names]
        _change(self.hosts, lambda entries: drained.with_drained(entries, new))
        for entry in new:
            sys.stdout.write(f"{drained_line(entry, now)}\n")


@dataclass(frozen=True)
class HostsUndrain(Command):
    """Take drained hosts back."""

    name: tuple[str, ...] = flag((), NAMES, takes="positional", required="which hosts?")
    hosts: str = flag("", HOSTS, "FILE", also=HOSTS_ALSO)

    def run(self) -> None:
        """Remove their entries; it is an error if one is not drained."""
        hostfile.load(hosts_file_of(self.hosts))  # another folder has another record
        names = sorted({name for each in self.name for name in hostfile.expanded(each, "hosts undrain")})

        def edit(entries: Entries) -> Entries:
            drained_hosts = [entry.host for entry in entries]
            for name in names:
                if name not in drained_hosts:
                    has = f"drained are {', '.join(drained_hosts)}" if entries else "no host is"
                    raise UsageError(f"{name} is not drained; {has}{nearest(name, drained_hosts)}")
            return tuple(entry for entry in entries if entry.host not in names)

        _change(self.hosts, edit)
        for name in names:
            sys.stdout.write(f"{name} is back\n")


def _change(hosts: str, edit: Callable[[Entries], Entries]) -> None:
    try:
        change(hosts_file_of(hosts), edit)
    except OSError as error:
        raise UsageError(f"{drained.FILE}: {explain(error)}") from None
