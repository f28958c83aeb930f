"""`drained.json` beside the hosts file: hosts that launches leave out, and why.

It has no secret, so a team keeps it with the hosts file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ...core.decode import MALFORMED, from_json, lazy_dataclass
from ...core.errors import UsageError
from ...core.hosts.bounds import Name, Text
from ...core.hosts.hostfile import Host
from ...core.text.terminal import harmless
from ...core.wire.durable import write_atomically
from ...core.wire.files import read_regular

FILE, DAY = "drained.json", 86400.0


@lazy_dataclass(frozen=True)
class Drained:
    """A host that launches leave out."""

    host: Name
    by: Name
    at: float
    """Seconds of the epoch."""
    why: Text


Entries = tuple[Drained, ...]


def load(hosts_file: Path) -> Entries:
    """What is drained of the hosts of this file; `UsageError` if the record is damaged."""
    path = hosts_file.with_name(FILE)
    try:
        return from_json(Entries, json.loads(read_regular(path)))  # type: ignore[no-any-return]
    except FileNotFoundError:
        return ()
    except (OSError, *MALFORMED) as error:
        raise UsageError(f"{path} is damaged ({error}); move it away, and drain the hosts again") from None


def change(hosts_file: Path, edit: Callable[[Entries], Entries]) -> Entries:
    """Replace the record by what `edit` makes of it, one process after another. OSError names the file."""
    descriptor = os.open(hosts_file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # NFS locks no folder
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        entries = edit(load(hosts_file))
        text = json.dumps([dataclasses.asdict(entry) for entry in entries], indent=1) + "\n"
        write_atomically(hosts_file.absolute().with_name(FILE), text.encode(), 0o644)
    finally:
        os.close(descriptor)
    return entries


def with_drained(entries: Entries, new: Iterable[Drained]) -> Entries:
    """The entries and new ones, which replace those of the same host."""
    added = {entry.host: entry for entry in new}
    return (*(entry for entry in entries if entry.host not in added), *added.values())


def usable(hosts: Sequence[Host], entries: Entries) -> tuple[tuple[Host, ...], Entries]:
    """The hosts that a job may use; and the entries of the others."""
    names = {host.name for host in hosts}
    entries = tuple(entry for entry in entries if entry.host in names)
    away = {entry.host for entry in entries}
    return tuple(host for host in hosts if host.name not in away), entries


def drained_line(entry: Drained, now: float) -> str:
    """`node7 is drained since 14:05 by alice: fan broken`."""
    return harmless(f"{entry.host} is drained since {clock(entry.at, now)} by {entry.by}: {entry.why}")


def clock(at: float, now: float) -> str:
    """`14:05`, with the date if it is not of the last day."""
    return time.strftime("%H:%M" if now - at < DAY else "%Y-%m-%d %H:%M", time.localtime(at))
