"""Fetches runs: the folder of one that is over, or the records for the page of one that runs."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from ..connect.requests import FILES, READ
from ..errors import MusterError
from ..wire.durable import sync_file_system
from ..wire.job_folders import FILES_FOLDER, HOSTS_RECORD
from ..wire.rank_logs import RankLog
from .find import LocatedJob

CHUNK = 1 << 20
MOST_BYTES = 1 << 36  # more than any run has; a bound so that no host can fill this machine's disk
SPARE_SHARE, MOST_SPARE = 20, 1 << 30  # a twentieth of the disk stays free, or 1 GiB where that is less
BLOCK = 1 << 12  # of a disk: a file of one byte takes as much
MOST_FILES = 1 << 17  # two logs for each of 65,536 ranks
_NAMES = (
    r"(job|result)\.json|verdict\.txt|driver\.log|events\.jsonl"
    r"|plan(\.restart-\d{1,9})?\.txt|launch(\.restart-\d{1,9})?\.json"
    r"|logs/(order|driver\.log|launcher@[^/\0]+\.log|rank-\d{4,9}@[^/\0]+\.(out|err))"
)
"""The files of a run that come from its host, beside those of features. Any other could be a file that a
program here runs or obeys: `.git`, `muster.toml`, `.muster/ssh_config`, `fabfile.py`. Only this machine
writes what its commands act on or a browser opens: stop.json, hosts.json (logins, the SSH configuration), the
number of a scheduler's job, which `muster stop` ends, and report.html."""
END_OF_LOG = 1 << 14
MOST_RECORD = 1 << 29
"""Bytes of a file of a run that still runs."""


class FeatureFiles(NamedTuple):
    """The files of features. `names`: a pattern of those in the folder of a run; `in_out`: of $MUSTER_OUT."""

    names: str
    in_out: Sequence[str]


def fetch(located: LocatedJob, runs: Path, more: FeatureFiles) -> Path:
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
            files = listed(located, more)
            _require_room(located, (size for _, size in files), _room(runs))
            for name, size in files:
                if _fetch_file(located, str(name), draft / name, 0, size, mode="xb") < size:
                    raise MusterError(
                        f"{located.records.host}: {name} ends before its {size} bytes; try again"
                    )
            sync_file_system(draft)  # a folder that exists is never fetched again
            _put_into_place(draft, target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        if not (target / "job.json").exists():  # else another process was first
            raise MusterError(f"{error.filename or runs}: {error.strerror or error}") from None
    return target


def listed(located: LocatedJob, more: FeatureFiles) -> list[tuple[PurePosixPath, int]]:
    """The files of a run with their sizes, as its host lists them; `MusterError` for too many."""
    files = located.records.ask(FILES, job=located.state.job).files
    ours = re.compile(f"{_NAMES}|{more.names}")
    known = [(PurePosixPath(name), size) for name, size in files if ours.fullmatch(name)]
    if len(known) > MOST_FILES:
        raise MusterError(
            f"{located.records.host}: the run has {len(known)} files in {located.state.folder}; the limit is "
            f"{MOST_FILES}"
        )
    return known


def _put_into_place(draft: Path, target: Path) -> None:
    """Rename the draft of a run to its folder, with what this machine has in there already."""
    own = (HOSTS_RECORD, FILES_FOLDER)
    _move(own, target, draft)
    try:
        draft.rename(target)  # it may replace an empty folder
    except OSError:
        _move(own, draft, target)
        raise


def _move(names: Iterable[str], source: Path, target: Path) -> None:
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            (source / name).replace(target / name)


def _require_room(located: LocatedJob, sizes: Iterable[int], room: int) -> None:
    """`MusterError` for a run that is too large."""
    total = sum(max(1, -(-size // BLOCK)) * BLOCK for size in sizes)  # an empty file takes an inode
    if total > min(MOST_BYTES, room):
        raise MusterError(
            f"{located.records.host}: the run has {total >> 20} MiB in {located.state.folder}; this machine "
            f"has room for {room >> 20} MiB, and the limit is {MOST_BYTES >> 20} MiB"
        )


def _room(folder: Path) -> int:
    """The bytes that a run may take on this disk; a part stays free."""
    disk = shutil.disk_usage(folder)
    return max(0, disk.free - min(disk.total // SPARE_SHARE, MOST_SPARE))


def snapshot(located: LocatedJob, folder: Path, more: FeatureFiles) -> None:
    """Write the records of a run that still runs into a folder, with the ends of its logs."""
    parts = dict[PurePosixPath, tuple[int, int]]()
    for path, size in listed(located, more):
        is_log = RankLog.of_name(path.name) is not None
        if is_log or (path.parts[0] != "logs" and size <= MOST_RECORD):
            start = max(0, size - END_OF_LOG) if is_log else 0
            parts[path] = start, size - start + END_OF_LOG  # it may have grown since
    _require_room(located, (most for _, most in parts.values()), _room(folder))
    for path, (start, most) in parts.items():
        _fetch_file(located, str(path), folder / path, start, most)
    for name in more.in_out:
        with contextlib.suppress(MusterError):
            _fetch_file(located, f"../out/{name}", folder / name, 0, MOST_RECORD)


def _fetch_file(
    located: LocatedJob, name: str, path: Path, start: int, most: int, *, mode: Literal["wb", "xb"] = "wb"
) -> int:
    """Fetch a file of a run from `start` on, to its end or at most so many bytes; returns their number."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    done = 0
    with path.open(mode) as file:
        while done < most:
            at, job = start + done, located.state.job
            part = located.records.ask(READ, job=job, name=name, start=at, most=CHUNK).payload
            done += file.write(part[: most - done])
            if len(part) < CHUNK:
                break
    return done
