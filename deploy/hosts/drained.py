"""`drained.json` beside the hosts file: hosts and GPUs that launches leave out, and why.

It has no secret, so a team keeps it with the hosts file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..common.durable import write_atomically
from ..decode import MALFORMED, from_json
from ..errors import UsageError
from .bounds import Name, Text
from .hostfile import Host

FILE = "drained.json"


@dataclass(frozen=True)
class Drained:
    """A host, or a GPU of it."""

    host: Name
    gpu: int | None
    """Its number, as nvidia-smi counts; None for the whole host."""
    by: Name
    at: float
    """Seconds of the epoch."""
    why: Text

    @property
    def what(self) -> str:
        """`node7`, `GPU 3 of node7`."""
        return self.host if self.gpu is None else f"GPU {self.gpu} of {self.host}"

    @property
    def undrain(self) -> str:
        """The command that takes it back."""
        return f"muster hosts undrain {self.host}" + ("" if self.gpu is None else f" --gpu {self.gpu}")


Entries = tuple[Drained, ...]


def load(hosts_file: Path) -> Entries:
    """What is drained of the hosts of this file; `UsageError` if the record is damaged."""
    path = hosts_file.with_name(FILE)
    try:
        return from_json(Entries, json.loads(path.read_bytes()))  # type: ignore[no-any-return]
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
    """The entries and new ones, which replace those of the same host or GPU."""
    added = {(entry.host, entry.gpu): entry for entry in new}
    return (*(entry for entry in entries if (entry.host, entry.gpu) not in added), *added.values())


def usable(hosts: Sequence[Host], entries: Entries) -> tuple[tuple[Host, ...], Entries]:
    """The hosts that a job may use, without drained GPUs and their slots; and the entries that matter here.

    Those of a host's GPUs do not matter if the whole host is drained.
    """
    names = {host.name for host in hosts}
    whole = {entry.host for entry in entries if entry.gpu is None}
    entries = tuple(e for e in entries if e.host in names and (e.gpu is None or e.host not in whole))
    left = [without_gpus(host, entries) for host in hosts if host.name not in whole]
    return tuple(host for host in left if host.slots), entries


def without_gpus(host: Host, entries: Entries) -> Host:
    """A host with its drained GPUs, and one slot less for each. Slots that no hosts file gives stay."""
    gpus = tuple(
        sorted({entry.gpu for entry in entries if entry.host == host.name and entry.gpu is not None})
    )
    slots = host.slots if host.slots_by_default else max(0, host.slots - len(gpus))
    return dataclasses.replace(host, slots=slots, drained_gpus=gpus) if gpus else host
