"""Fetches runs: the folder of one that is over, or the records for the page of one that runs."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ..common.durable import sync_file_system
from ..common.rank_logs import RankLog
from ..connect.requests.jobs import FILES, READ
from ..errors import MusterError
from ..hosts.received_paths import inner_paths
from .control import LocatedJob
from .hosts_record import NAME as HOSTS
from .metrics import METRICS

CHUNK = 1 << 20
MOST_BYTES = 1 << 36  # more than any run has; a bound so that no host can fill this machine's disk
SPARE_SHARE, MOST_SPARE = 20, 1 << 30  # a twentieth of the disk stays free, or 1 GiB where that is less
BLOCK = 1 << 12  # of a disk: a file of one byte takes as much
_OURS = frozenset({"slurm.json", "stop.json", "report.html", HOSTS})
"""Files that only this machine may write into its copy of a run. It uses the first two: `muster stop` ends
the job of Slurm in slurm.json. The third is a page, which a browser opens as ours. The last has the
logins of commands, and their SSH configuration."""
END_OF_LOG = 1 << 14
MOST_RECORD = 1 << 28
"""Bytes of a file of a run that still runs."""


def fetch(located: LocatedJob, runs: Path) -> Path:
    """Fetch the folder of a run, completely or not at all. A local run stays as it is.

    The local record of its hosts, from its launch, stays in the folder.
    """
    target = runs / located.state.job
    if (target / "job.json").exists():
        return target
    try:
        runs.mkdir(parents=True, exist_ok=True)
        # Each call has its own draft: two users may attach to the same job at once.
        draft = Path(tempfile.mkdtemp(prefix=f".{located.state.job}.", suffix=".new", dir=runs))
        try:
            for name, size in _files(located, _room(runs)):
                _fetch_file(located, name, size, draft / name)
            sync_file_system(draft)  # a folder that exists is never fetched again
            _settle(draft, target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        if not (target / "job.json").exists():  # else another process was first
            raise MusterError(f"{error.filename or runs}: {error.strerror or error}") from None
    return target


def listed(located: LocatedJob) -> list[tuple[PurePosixPath, int]]:
    """The files of a run with their sizes, as its host lists them; `MusterError` for a path not allowed."""
    files = located.records.ask(FILES, job=located.state.job).files
    inner_paths((name for name, _ in files), located.records.host)
    return [(PurePosixPath(name), size) for name, size in files]


def _settle(draft: Path, target: Path) -> None:
    """Rename the draft of a run to its folder, with the local record of its hosts, if any."""
    record, moved = target / HOSTS, draft / HOSTS
    with contextlib.suppress(FileNotFoundError):
        record.replace(moved)
    try:
        draft.rename(target)  # it may replace an empty folder
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            moved.replace(record)
        raise


def _files(located: LocatedJob, room: int) -> list[tuple[PurePosixPath, int]]:
    """The files of a run with their sizes, in bytes, without those that only this machine may write.

    `MusterError` for a run that is too large.
    """
    host = located.records.host
    files = [(path, size) for path, size in listed(located) if not _is_ours(path)]
    total = sum(-(-size // BLOCK) * BLOCK for _, size in files)
    if total > min(MOST_BYTES, room):
        raise MusterError(
            f"{host}: the run has {total >> 20} MiB in {located.state.folder}; this machine has room for "
            f"{room >> 20} MiB, and the limit is {MOST_BYTES >> 20} MiB"
        )
    return files


def _room(folder: Path) -> int:
    """The bytes that a run may take on this disk; a part stays free."""
    disk = shutil.disk_usage(folder)
    return max(0, disk.free - min(disk.total // SPARE_SHARE, MOST_SPARE))


def _is_ours(path: PurePosixPath) -> bool:
    # On a Mac, Slurm.json is the same file as slurm.json.
    name = path.name.casefold()
    return len(path.parts) == 1 and (name in _OURS or name.startswith("lock."))


def _fetch_file(located: LocatedJob, name: PurePosixPath, size: int, path: Path) -> None:
    """Fetch one file of a run, with the announced number of bytes."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("xb") as file:
        if sum(map(file.write, _parts(located, str(name), 0, size))) < size:
            raise MusterError(f"{located.records.host}: {name} ends before its {size} bytes; try again")


def snapshot(located: LocatedJob, folder: Path) -> None:
    """Write the records of a run that still runs into a folder, with the ends of its logs.

    `MusterError` for a path that is not allowed.
    """
    for path, size in listed(located):
        if path.parts[0] == "logs":
            if RankLog.of_name(path.name):
                _snapshot_file(located, str(path), folder / path, max(0, size - END_OF_LOG))
        elif size <= MOST_RECORD:
            _snapshot_file(located, str(path), folder / path, 0)
    for name in METRICS:  # until the end of the job, they are only in the program's folder
        with contextlib.suppress(MusterError):
            _snapshot_file(located, f"../out/{name}", folder / name, 0)


def _snapshot_file(located: LocatedJob, name: str, path: Path, start: int) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(b"".join(_parts(located, name, start, MOST_RECORD)))


def _parts(located: LocatedJob, name: str, start: int, most: int) -> Iterator[bytes]:
    """The content of a file from `start` on, to its end or at most so many bytes."""
    end = start + most
    while start < end:
        part = located.records.ask(READ, job=located.state.job, name=name, start=start, most=CHUNK).payload[
            :CHUNK
        ]
        yield part[: end - start]
        if len(part) < CHUNK:
            return
        start += len(part)
