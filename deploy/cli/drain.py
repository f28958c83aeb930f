"""`muster hosts drain`, `undrain` and `drained`: hosts and GPUs that launches leave out."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from ..common.os_errors import explain
from ..common.users import own_name
from ..console.text import nearest
from ..errors import UsageError
from ..hosts import drained, hostfile
from ..hosts.drained import Drained, Entries, change
from ..hosts.gpus import MOST_GPUS
from ..jobs.free import drained_line
from .command import Command, flag
from .shared import HOSTS, HOSTS_ALSO, JSON, hosts_file_of, write_json

GPUS = "only these GPUs, by number as nvidia-smi counts"
NAMES = "a host, or a range node[01-16]"


@dataclass(frozen=True)
class HostsDrain(Command):
    """Put hosts or GPUs aside: no launch uses them. Running jobs continue.

    A drained GPU takes one slot of its host. The record is drained.json, beside the hosts file.

    muster hosts drain gpu7 --why "fan broken, ticket 812"
    muster hosts drain gpu7 --gpu 3 --why "Xid 79"
    """

    name: tuple[str, ...] = flag((), NAMES, takes="positional", required="which hosts?")
    gpu: tuple[str, ...] = flag((), GPUS, "NUMBER")
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
        gpus: list[int] | list[None] = [_gpu(text) for text in self.gpu] or [None]
        now, by, why = time.time(), own_name(), " ".join(self.why.split())
        new = [Drained(name, gpu, by, now, why) for name in names for gpu in gpus]
        _change(self.hosts, lambda entries: drained.with_drained(entries, new))
        for entry in new:
            sys.stdout.write(f"{drained_line(entry, now)}\n")


@dataclass(frozen=True)
class HostsUndrain(Command):
    """Take drained hosts or GPUs back.

    Without --gpu this is the whole host with all of its GPUs.
    """

    name: tuple[str, ...] = flag((), NAMES, takes="positional", required="which hosts?")
    gpu: tuple[str, ...] = flag((), GPUS, "NUMBER")
    hosts: str = flag("", HOSTS, "FILE", also=HOSTS_ALSO)

    def run(self) -> None:
        """Remove their entries; it is an error if one is not drained."""
        hostfile.load(hosts_file_of(self.hosts))  # another folder has another record
        names = sorted({name for each in self.name for name in hostfile.expanded(each, "hosts undrain")})
        gpus = [_gpu(text) for text in self.gpu]
        removed: list[Drained] = []

        def edit(entries: Entries) -> Entries:
            removed[:] = [e for e in entries if e.host in names and (not gpus or e.gpu in gpus)]
            wanted: list[int] | list[None] = gpus or [None]
            found = {(entry.host, entry.gpu if gpus else None) for entry in removed}
            for name, gpu in itertools.product(names, wanted):
                if (name, gpu) not in found:
                    what = name if gpu is None else f"GPU {gpu} of {name}"
                    has = f"drained are {', '.join(e.what for e in entries)}" if entries else "nothing is"
                    hint = nearest(name, [entry.host for entry in entries])
                    raise UsageError(f"{what} is not drained; {has}{hint}")
            return tuple(entry for entry in entries if entry not in removed)

        _change(self.hosts, edit)
        for entry in removed:
            sys.stdout.write(f"{entry.what} is back\n")


@dataclass(frozen=True)
class HostsDrained(Command):
    """Show which hosts and GPUs are drained, by whom, since when and why."""

    hosts: str = flag("", HOSTS, "FILE", also=HOSTS_ALSO)
    json: bool = flag(False, JSON)

    def run(self) -> None:
        """Print a line for each."""
        path, now = hosts_file_of(self.hosts), time.time()
        hostfile.load(path)  # another folder has another record
        entries = drained.load(path)
        if self.json:
            write_json([asdict(entry) for entry in entries])
            return
        for entry in entries:
            sys.stdout.write(f"{drained_line(entry, now)}\n")
        if not entries:
            sys.stdout.write("no host is drained\n")


def _change(hosts: str, edit: Callable[[Entries], Entries]) -> None:
    try:
        change(hosts_file_of(hosts), edit)
    except OSError as error:
        raise UsageError(f"{drained.FILE}: {explain(error)}") from None


def _gpu(text: str) -> int:
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MOST_GPUS))
    if not is_number or int(text) >= MOST_GPUS:
        raise UsageError(f"--gpu {text}: write the number of a GPU, from 0 to {MOST_GPUS - 1}")
    return int(text)
