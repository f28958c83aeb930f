"""`muster hosts drain` and `undrain`: hosts that launches leave out."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from ...cli.command import Command
from ...cli.shared import HOSTS, HOSTS_ALSO, hosts_file_of
from ...core.errors import UsageError
from ...core.hosts import hostfile
from ...core.plan.flags import flag
from ...core.text.text import nearest
from ...core.wire.os_errors import explain
from ...core.wire.users import own_name
from . import drained
from .drained import Drained, Entries, change, drained_line

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
