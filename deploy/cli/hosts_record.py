"""hosts.json in the folder of a local run: the hosts of its launch, and how to log in to them.

Later commands for the job ask these hosts, even if hosts.txt has changed. Nothing that a host sends is
written to the file.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from ..core.connect.opener import Access, require_usable
from ..core.connect.ownership import require_own
from ..core.connect.pipe import LostError
from ..core.connect.requests import JobState
from ..core.decode import MALFORMED, AtMost, Between, from_json, lazy_dataclass
from ..core.errors import MusterError, UsageError
from ..core.hosts import hostfile
from ..core.hosts.bounds import MOST_HOSTS, Text
from ..core.hosts.hostfile import Host
from ..core.job.bounded import content_of
from ..core.wire.durable import write_atomically
from ..core.wire.job_folders import HOSTS_RECORD as NAME
from ..core.wire.job_folders import is_job_id
from ..core.wire.os_errors import explain

VERSION = 1
MOST_BYTES = 1 << 22


@dataclass(frozen=True)
class HostsRecord:
    """Where the ranks of a job are, and how this machine reaches them."""

    hosts: tuple[Host, ...]
    """All hosts that the job may use, in the order of its hosts file."""
    access: Access
    detached: bool = False
    """Whether the first host has the job's driver, and the folder of its run."""

    @property
    def with_runs(self) -> tuple[Host, ...]:
        """The hosts that may have the folder of the run."""
        return self.hosts[:1] if self.detached else self.hosts

    @property
    def content(self) -> bytes:
        written = _Written(VERSION, tuple(map(_line, self.hosts)), self.access, self.detached)
        return (json.dumps(asdict(written), indent=2) + "\n").encode()

    def require_planned(self, state: JobState) -> None:
        """`MusterError` for a state with ranks that the launch cannot have placed so.

        The state comes from the head of a detached job, which is not trusted with the ranks of other hosts.
        """
        slots = {host.name: host.slots for host in self.hosts}
        order = [name for name in slots if name in state.hosts]
        crowded = [
            name
            for name, number in zip(state.hosts, state.placed, strict=False)
            if number > slots.get(name, 0)
        ]
        # In any order: hosts that were lost and came back are last.
        if sorted(order) != sorted(state.hosts) or crowded:
            text = f"the record on {order[0]} has ranks on hosts where the launch cannot have placed them"
            raise MusterError(f"{state.job}: {text}")


@lazy_dataclass(frozen=True)
class _Written:
    version: Annotated[int, Between(1, VERSION)]
    hosts: Annotated[tuple[Text, ...], AtMost(MOST_HOSTS)]
    """Lines of a hosts file."""
    access: Access
    detached: bool


def write(folder: Path, record: HostsRecord) -> None:
    """Write the record of a run into its folder. May raise OSError."""
    write_atomically(folder / NAME, record.content, 0o600)


def _line(host: Host) -> str:
    values = {"slots": host.slots, "user": host.user, "port": host.port, "addr": host.addr}
    return " ".join([host.name, *(f"{key}={value}" for key, value in values.items() if value is not None)])


@contextlib.contextmanager
def kept_if_taken(runs: Path, job: str, record: HostsRecord | None) -> Iterator[None]:
    """Keep the record of a job that is detached in this context, unless its head refuses it.

    Without a first report the job may run, so the record stays.
    """
    if record is None:
        yield
        return
    folder, is_first = runs / job, not runs.exists()
    try:
        folder.mkdir(mode=0o700, parents=True)
        write(folder, record)
    except OSError as error:
        raise UsageError(f"--runs {runs}: {explain(error)}") from None
    try:
        yield
    except LostError:
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another launch may have made a folder in it
            if is_first:
                runs.rmdir()
        raise


def find(runs: Path, job: str) -> HostsRecord | None:
    """The record of the job with this id, or whose id ends so; None without one.

    `UsageError` for several jobs, and for an invalid or untrusted file.
    """
    names = [name for path in runs.glob(f"*/{NAME}") if is_job_id(name := path.parent.name)]
    matching = [name for name in names if name == job] or [name for name in names if name.endswith(job)]
    if len(matching) > 1:
        raise UsageError(f"several jobs end in {job}: {', '.join(sorted(matching))}")
    return _read(runs / matching[0] / NAME) if matching else None


def head_of(runs: Path, job: str) -> str:
    """The host with the run of a job that was detached from here; empty if there is no valid record of it."""
    path = runs / job / NAME
    with contextlib.suppress(UsageError):
        if path.is_file() and (record := _read(path)).detached:
            return record.hosts[0].name
    return ""


def newest_elsewhere(runs: Path, after: str = "") -> HostsRecord | None:
    """The record of the newest job whose run is on its first host, not on this machine.

    `after`: only of a job whose id is later.
    """
    folders = [path.parent for path in runs.glob(f"*/{NAME}") if is_job_id(path.parent.name)]
    away = [folder for folder in folders if folder.name > after and not (folder / "job.json").exists()]
    now = time.strftime("%Y%m%d-%H%M%S~")  # an id of a later time was made while the clock was wrong
    newest = max(away, key=lambda folder: (folder.name < now, folder.name), default=None)
    return _read(newest / NAME) if newest else None


def _read(path: Path) -> HostsRecord:
    require_own((path.parent, path), "it has hosts to log in to")
    try:
        written: _Written = from_json(_Written, json.loads(content_of(path, MOST_BYTES)))
        hosts = hostfile.parse("\n".join(written.hosts), str(path))
        record = HostsRecord(hosts, replace(written.access, here=""), written.detached)
    except (OSError, MusterError, *MALFORMED) as error:
        why = explain(error) if isinstance(error, OSError) else str(error)
        raise UsageError(f"{path}: {why}; remove this file, and give the job's hosts with --hosts") from None
    require_usable(record.access)
    return record
