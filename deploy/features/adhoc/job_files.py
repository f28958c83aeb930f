"""Fetches the files that the program of a job wrote into the job's folders on its hosts."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ...core.connect.channel import Channel
from ...core.connect.fanout import on_every
from ...core.errors import MusterError
from ...core.hosts.received_paths import inner_path
from ...core.wire.files import Entry, complete, digest
from ...core.wire.paths import JobPaths
from .put_get import TRANSFER_SECONDS, OnProgress, count_bytes, facts_of, fetch_files, require_room

OUT = "MUSTER_OUT"
"""The folder here for the files of $MUSTER_OUT. The others keep their paths in the tree."""


class _File(NamedTuple):
    """A file of a host: its entry there, whose path begins in the job's folder, and its path here."""

    entry: Entry
    target: str


def _file(entry: Entry, host: str) -> _File:
    """`MusterError` for an entry that the search for files of a job cannot have found."""
    top, _, inner = entry.path.partition("/")
    if entry.kind != "file" or top not in {"code", "out"} or str(inner_path(inner, host)) != inner:
        raise MusterError(
            f"{entry.path!r:.200} is not a file that the program of a job can have written", host=host
        )
    return _File(entry, inner if top == "code" else f"{OUT}/{inner}")


class Fetched(NamedTuple):
    """The files here, and the error of each host whose files could not be fetched."""

    paths: list[Path]
    errors: dict[str, MusterError]


def get_files(
    channels: Mapping[str, Channel],
    job: str,
    inner: str,
    folder: Path,
    progress: OnProgress = lambda more, total: None,
) -> Fetched:
    """Fetch the files at or below a path, all without one, into a folder; those that are here already stay.

    A file that is not the same on all hosts that have it becomes `NAME@HOST.SUFFIX` of each of them.
    """
    source = JobPaths.of("~", job).folder

    def look(host: str) -> list[_File]:
        facts = facts_of(channels[host], source, TRANSFER_SECONDS, written=inner)
        return [_file(Entry(*entry), host) for entry in facts.entries or ()]

    looked = on_every(channels, look)
    chosen = _chosen(looked.results)
    missing = {
        host: [file for file in files if not _is_here(folder / file.target, file.entry)]
        for host, files in chosen.items()
    }
    sizes = {host: sum(file.entry.length for file in files) for host, files in missing.items()}
    if chosen:
        folder.mkdir(parents=True, exist_ok=True)
        require_room(sum(sizes.values()), folder)
    on_part = partial(count_bytes, progress, sizes)

    def receive(host: str) -> None:
        files = [file for file in missing[host] if file.entry.length]
        # A new private folder: others may write to `folder`, and make a link with the name of a draft.
        draft = Path(tempfile.mkdtemp(prefix=".muster-get-", dir=folder))
        try:
            wanted = [(f"{source}/{each.entry.path}", each.target, each.entry.length) for each in files]
            fetch_files(channels[host], draft, wanted, on_part)
            complete(str(draft), [each.entry._replace(path=each.target) for each in missing[host]])
            for each in missing[host]:
                _place(draft / each.target, folder / each.target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    received = on_every([host for host in missing if missing[host]], receive)
    paths = (folder / file.target for host in chosen.keys() - received.errors.keys() for file in chosen[host])
    return Fetched(sorted(paths), looked.errors | received.errors)


def _chosen(found: Mapping[str, list[_File]]) -> dict[str, list[_File]]:
    """The files to fetch of each host. Equal files of several hosts are fetched from the first."""
    holders: dict[str, dict[str, dict[str, _File]]] = defaultdict(lambda: defaultdict(dict))
    for host, files in found.items():
        for file in files:
            holders[file.target][file.entry.digest][host] = file
    chosen: dict[str, list[_File]] = defaultdict(list)
    for target, by_digest in holders.items():
        for by_host in by_digest.values():
            if len(by_digest) == 1:
                host, file = next(iter(by_host.items()))
                chosen[host].append(file)
                continue
            for host, file in by_host.items():
                chosen[host].append(file._replace(target=_of_host(target, host)))
    return chosen


def _of_host(target: str, host: str) -> str:
    path = PurePosixPath(target)
    return str(path.with_name(f"{path.stem}@{host}{path.suffix}"))


def _is_here(path: Path, entry: Entry) -> bool:
    try:
        return path.lstat().st_size == entry.length and digest(path) == entry.digest
    except OSError:
        return False


def _place(draft: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    draft.replace(target)
