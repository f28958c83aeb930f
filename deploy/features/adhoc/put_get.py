"""Copies files and folders to and from every host at once: complete and unchanged, or not at all."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Generic, NamedTuple

from ...core.connect.channel import Channel
from ...core.connect.cluster import Cluster
from ...core.connect.fanout import HostOutcomes, ask_every, on_every
from ...core.connect.requests import FILE_PART, Answer, Nothing, Request
from ...core.decode import MALFORMED
from ...core.errors import MusterError, UsageError
from ...core.hosts.received_paths import inner_path, inner_paths
from ...core.wire.durable import write_atomically
from ...core.wire.files import CHUNK_BYTES, Entry, digest, newest_in, read_regular
from ...core.wire.os_errors import explain
from ...core.wire.paths import JobPaths
from .messages import FILE, FILE_ENTRIES, PUT_BEGIN, PUT_CHECK, PUT_PLACE, PUT_WRITE, FileFacts, ListedEntry
from .wire import PAGE, append, complete, entries, listing_digest

TRANSFER_SECONDS, PLACE_SECONDS = 600.0, 30.0
# A host has to move so many bytes in so many seconds of waiting for it; a file counts as a block more. And it
# has to read files at least this fast, in bytes a second.
PROGRESS_BYTES, PROGRESS_SECONDS, BLOCK, SLOWEST = CHUNK_BYTES, 60.0, 1 << 12, 1 << 23
# The most requests in flight to one host, and the most bytes in them: small files need not wait for each
# other, and many hosts must not fill this machine's memory.
IN_FLIGHT, BYTES_IN_FLIGHT = 64, 2 * CHUNK_BYTES
# Limits for one folder: a host may send anything, and several hosts may at once.
MOST_ENTRIES, MOST_TEXT = 200_000, 1 << 25
DRAFTS, ABANDONED_SECONDS = ".muster-get-", 3600.0


OnProgress = Callable[[int, int], None]
"""Gets the bytes of a transferred part, and the total bytes of all hosts."""


def put(
    cluster: Cluster, source: Path, target: str, progress: OnProgress = lambda more, total: None
) -> dict[str, int]:
    """Copy a file or folder to every host, or to none if one host cannot take it.

    Returns the bytes sent to each host. Content that a host already has, also a part of it from an
    interrupted put, is not sent.
    """
    mode, listed = _described(source)
    is_folder = source.is_dir()
    size = sum(entry.length for entry in listed)
    total, sent = size * len(cluster.channels), dict.fromkeys(cluster.channels, 0)
    content = listing_digest(listed) if is_folder else listed[0].digest
    what: dict[str, Any] = {"entries": listed} if is_folder else {"digest": content}
    arguments: dict[str, Any] = {"path": target, "name": source.resolve().name, "folder": is_folder}

    def send(host: str) -> str:
        channel = cluster.channels[host]
        seconds = PROGRESS_SECONDS + size / SLOWEST
        started = channel.ask(PUT_BEGIN, digest=content, length=size, seconds=seconds, **arguments)
        draft, have = started.draft, min(started.have, size)
        progress(have, total)
        for part, _ in _answers(channel, _parts_to(source, draft, listed, have)):
            sent[host] += part.weight
            progress(part.weight, total)
        channel.ask(PUT_CHECK, draft=draft, mode=mode, seconds=seconds, **what)
        return draft

    drafts = on_every(cluster.channels, send, interrupted=cluster.close).require_all()
    ask_every(cluster.channels, PUT_PLACE, PLACE_SECONDS, lambda host: {"draft": drafts[host]}).require_all()
    return sent


def get(
    cluster: Cluster, source: str, folder: Path, progress: OnProgress = lambda more, total: None
) -> HostOutcomes[Path]:
    """Copy a file or folder from every host, each under its host's name: `metrics@node1.jsonl`.

    `progress`: the total grows until every host has reported its size.
    """
    name = PurePosixPath(source)
    if name.name in {"", ".."}:
        raise UsageError(f"{source}: which file or folder? give its name")
    folder.mkdir(parents=True, exist_ok=True)
    sizes = dict.fromkeys(cluster.channels, 0)

    def receive(host: str) -> Path:
        channel = cluster.channels[host]
        facts = facts_of(channel, source, TRANSFER_SECONDS)
        is_folder = facts.entries is not None
        sizes[host] = facts.length + sum(entry.length for entry in facts.entries or ())
        require_room(sizes[host], folder)
        suffix = "" if is_folder else name.suffix
        target = folder / f"{name.name.removesuffix(suffix)}@{channel.host}{suffix}"
        if is_folder and os.path.lexists(target):
            raise MusterError(f"{target} exists; remove it, or give another folder")
        with _drafts(folder) as private:
            draft = private / target.name
            for more in _receive(channel, source, draft, facts):
                progress(more, sum(sizes.values()))
            _rename_with_mode(draft, target, facts.mode & 0o777)
        return target

    return on_every(cluster.channels, receive, interrupted=cluster.close)


@contextmanager
def _drafts(folder: Path) -> Iterator[Path]:
    """A new private folder: others may write to `folder`, and make a link with the name of a draft."""
    for left in folder.glob(f"{DRAFTS}*"):  # of killed commands
        if newest_in(left) < time.time() - ABANDONED_SECONDS:
            shutil.rmtree(left, ignore_errors=True)
    private = Path(tempfile.mkdtemp(prefix=DRAFTS, dir=folder))
    try:
        yield private
    finally:
        shutil.rmtree(private, ignore_errors=True)


def facts_of(channel: Channel, path: str, seconds: float, **wanted: Any) -> FileFacts:
    """The facts of a path, with all entries of a folder.

    `seconds`: for each PAGE of them; the host reads the files.

    `wanted`: `written=PATH`, of the folder of a job, for the files that its program wrote at or below a path.

    `MusterError` for a folder with more than MOST_ENTRIES entries, or whose paths are longer than MOST_TEXT,
    and for a path that is not allowed here (core/hosts/received_paths.py).
    """
    began = time.monotonic()
    facts = channel.ask(FILE, path=path, seconds=seconds, **wanted)
    listed: list[ListedEntry] = list(facts.entries or ())
    more, text = facts.more, _length(facts.entries or ())
    while more:
        until = began + seconds * (1 + len(listed) / PAGE)
        page = channel.ask(FILE_ENTRIES, path=path, seconds=max(1.0, until - time.monotonic()))
        if page.more and not page.entries:
            raise MusterError(f"{path}: its listing does not continue")
        listed += page.entries
        more, text = page.more, text + _length(page.entries)
        if len(listed) > MOST_ENTRIES or text > MOST_TEXT:
            most = min(len(listed) - 1, MOST_ENTRIES)
            raise MusterError(
                f"{path} has more than {most} files and folders; bring it as one file: "
                f"muster run -- tar cf NAME.tar {shlex.quote(str(path))}, then muster get NAME.tar"
            )
    inner_paths((entry.path for entry in listed), channel.host)
    return facts if facts.entries is None else replace(facts, entries=tuple(listed), more=False)


def _described(source: Path) -> tuple[int, list[Entry]]:
    """The mode and the entries: of a folder, or a file as the only one, whose path is empty."""
    try:
        status = source.stat()
        mode = status.st_mode & 0o777
        if source.is_dir():
            return mode, [*entries(str(source))]
        if source.is_file():
            return mode, [Entry("", "file", mode, status.st_size, digest(source))]
    except OSError as error:
        raise UsageError(f"{error.filename or source}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    raise UsageError(f"{source}: neither a file nor a folder")


def _parts_to(source: Path, draft: str, listed: Iterable[Entry], have: int) -> Iterator[_Question[Nothing]]:
    """The requests that send the content of the files, together from a byte on."""
    for entry in listed:
        if entry.kind == "file" and have < entry.length:
            with (source / entry.path).open("rb") as file:
                file.seek(have)
                while part := file.read(CHUNK_BYTES):
                    yield _Question(PUT_WRITE, {"draft": draft, "path": entry.path}, len(part), part)
        have = max(0, have - entry.length)


def require_room(size: int, folder: Path) -> None:
    """`MusterError` without room for so many bytes here: a host may claim any size."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise MusterError(f"it has {size >> 20} MiB, and {folder} has room for {free >> 20} MiB")


def _receive(channel: Channel, source: str, draft: Path, facts: FileFacts) -> Iterator[int]:
    """Receive a file or a folder completely, or raise an error; yields the bytes of each part."""
    if facts.entries is None:
        draft.touch(0o600, exist_ok=False)
        yield from fetch_files(channel, draft, [(source, "", facts.length)])
        if digest(draft) != facts.digest:
            raise MusterError(f"{source} changed or was damaged in transit; try again")
        return
    draft.mkdir(0o700)
    wanted = [(f"{source}/{path}", path, size) for path, kind, _, size, *_ in facts.entries if kind == "file"]
    yield from fetch_files(channel, draft, wanted)
    complete(str(draft), [Entry(*entry) for entry in facts.entries])


def fetch_files(channel: Channel, draft: Path, files: Iterable[tuple[str, str, int]]) -> Iterator[int]:
    """Fetch files, `(path there, path in the draft, bytes)`, into a draft, unverified; yields bytes."""
    parts = (
        _Question(
            *(FILE_PART, {"path": source, "start": start, "most": CHUNK_BYTES}),
            min(CHUNK_BYTES, length - start),
            target=target,
        )
        for source, target, length in files
        for start in range(0, length, CHUNK_BYTES)
    )
    for part, answer in _answers(channel, parts):
        append(str(draft), part.target, answer.payload[: part.weight])
        yield part.weight


@dataclass(frozen=True)
class _Question(Generic[Answer]):
    """A request with its arguments. `weight`: the bytes in it or in its answer."""

    request: Request[Answer]
    arguments: Mapping[str, Any]
    weight: int
    payload: bytes = b""
    target: str = ""
    """The path in the draft for the answer."""


def _answers(
    channel: Channel, questions: Iterable[_Question[Answer]]
) -> Iterator[tuple[_Question[Answer], Answer]]:
    """The answers in order, with several requests in flight. `LostError` for a host that is too slow."""
    waited, moved = 0.0, 0

    def answer(question: _Question[Answer], future: Future[Answer]) -> tuple[_Question[Answer], Answer]:
        """The next answer. Bytes bound the wait: a host may report without an end that it is busy."""
        nonlocal waited, moved
        began = time.monotonic()
        found = channel.wait(future, PROGRESS_SECONDS, began - waited)
        waited, moved = waited + time.monotonic() - began, moved + question.weight + BLOCK
        if moved >= PROGRESS_BYTES:
            waited, moved = 0.0, 0
        return question, found

    in_flight: deque[tuple[_Question[Answer], Future[Answer]]] = deque()
    for question in questions:
        while (
            len(in_flight) >= IN_FLIGHT
            or question.weight + sum(other.weight for other, _ in in_flight) > BYTES_IN_FLIGHT
        ):
            yield answer(*in_flight.popleft())
        in_flight.append((question, channel.post(question.request, question.payload, **question.arguments)))
    for question, future in in_flight:
        yield answer(question, future)


def _rename_with_mode(draft: Path, target: Path, mode: int) -> None:
    """Rename a draft to its target. A folder gets its mode afterwards: a read-only folder cannot be moved."""
    opened = os.open(draft, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        if not draft.is_dir():
            os.fchmod(opened, mode)
        draft.replace(target)
        os.fchmod(opened, mode)
    finally:
        os.close(opened)


def _length(entries: tuple[ListedEntry, ...]) -> int:
    return sum(len(entry.path) + len(entry.link) for entry in entries)


RECORD = "fetched.json"  # what was fetched: a file that was changed here since is not overwritten
OUT = "MUSTER_OUT"
"""The folder here for the files of $MUSTER_OUT. The others keep their paths in the tree."""


class _File(NamedTuple):
    """A file or link of a host, whose path there begins in the job's folder, and its path here."""

    entry: Entry
    target: str
    content: str
    """Its SHA-256, or the target of a link."""


def _file(entry: Entry, host: str) -> _File:
    """`MusterError` for an entry that the search for files of a job cannot have found."""
    top, _, inner = entry.path.partition("/")
    if entry.kind == "folder" or top not in {"code", "out"} or str(inner_path(inner, host)) != inner:
        raise MusterError(f"{entry.path!r:.200} is not a file that a program of a job can write", host=host)
    target = inner if top == "code" else f"{OUT}/{inner}"
    if entry.kind == "link":
        reached = _file(Entry(entry.link, "file"), host).target
        entry = entry._replace(link=os.path.relpath(reached, PurePosixPath(target).parent))
    return _File(entry, target, entry.digest or entry.link)


class Fetched(NamedTuple):
    """The files here, the error of each host of which none could be fetched, and lines about other files."""

    paths: list[Path]
    errors: dict[str, MusterError]
    left_out: list[str]
    failed: dict[str, str]


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
    source, left_out, failed = JobPaths.of("~", job).folder, list[str](), dict[str, str]()

    def look(host: str) -> list[_File]:
        within = inner.removeprefix(OUT).lstrip("/") if f"{inner}/".startswith(f"{OUT}/") else inner
        listed = facts_of(channels[host], source, TRANSFER_SECONDS, written=within).entries or ()
        left = (entry for entry in listed if entry.link.startswith("/"))
        left_out.extend(f"{host}: left out: {each.path}, a link to {each.link}" for each in left)
        files = [_file(Entry(*entry), host) for entry in listed if not entry.link.startswith("/")]
        unread = [file for file in files if not (file.entry.digest or file.entry.link)]
        failed.update((f"{host}: {file.target}", f"{host}: cannot read {file.entry.path}") for file in unread)
        files = [file for file in files if file not in unread]
        return [file for file in files if within == inner or f"{file.target}/".startswith(f"{inner}/")]

    looked = on_every(channels, look)
    chosen = _chosen(looked.results, failed)
    before, missing = _recorded(folder.with_name(RECORD)), dict[str, list[_File]]()
    for host, files in chosen.items():
        here = {file: _content(folder / file.target) for file in files}
        changed = [file for file in files if here[file] not in {"", file.content, before.get(file.target)}]
        for path in (folder / file.target for file in changed):
            failed[str(path)] = f"{path} was changed here, so it stays; move it, and get it again"
        chosen[host] = [file for file in files if file not in changed]
        missing[host] = [file for file in chosen[host] if here[file] != file.content]
    sizes = {host: sum(file.entry.length for file in files) for host, files in missing.items()}
    if chosen:
        folder.mkdir(parents=True, exist_ok=True)
        require_room(sum(sizes.values()), folder)

    def receive(host: str) -> None:
        files = [file for file in missing[host] if file.entry.length]
        with _drafts(folder) as draft:
            wanted = [(f"{source}/{each.entry.path}", each.target, each.entry.length) for each in files]
            for more in fetch_files(channels[host], draft, wanted):
                progress(more, sum(sizes.values()))
            for each in missing[host]:
                try:
                    complete(str(draft), [each.entry._replace(path=each.target)])
                    _place(draft, folder, each.target)
                except OSError as error:
                    failed[each.target] = f"{host}: {explain(error)}"

    received = on_every([host for host in missing if missing[host]], receive)
    kept = (file for host in chosen.keys() - received.errors.keys() for file in chosen[host])
    contents = {file.target: file.content for file in kept if file.target not in failed}
    if contents:
        write_atomically(folder.with_name(RECORD), json.dumps({**before, **contents}).encode(), 0o600)
    return Fetched(
        sorted(folder / target for target in contents), looked.errors | received.errors, left_out, failed
    )


def _recorded(path: Path) -> Mapping[str, Any]:
    """The contents of earlier fetches, by their paths."""
    with suppress(OSError, *MALFORMED):
        return dict(json.loads(read_regular(path)))
    return {}


def _chosen(found: Mapping[str, list[_File]], failed: dict[str, str]) -> dict[str, list[_File]]:
    """The files to fetch of each host. Equal files of several hosts are fetched from the first."""
    holders: dict[str, dict[str, dict[str, _File]]] = defaultdict(lambda: defaultdict(dict))
    for host, files in found.items():
        for file in files:
            holders[file.target][file.content][host] = file
    chosen, taken = defaultdict[str, list[_File]](list), dict[str, _File]()
    for target, by_digest in holders.items():
        differ, path = len(by_digest) > 1, PurePosixPath(target)
        for by_host in by_digest.values():
            for host, file in [*by_host.items()][: None if differ else 1]:
                name = str(path.with_name(f"{path.stem}@{host}{path.suffix}")) if differ else target
                if taken.setdefault(name, file) == file:
                    chosen[host].append(file._replace(target=name))
                else:
                    where = f"{host}: {file.entry.path}"
                    failed[where] = f"{where}: {name} is another file here"
    return chosen


def _content(path: Path) -> str:
    """The SHA-256 of a file here, or the target of a link; empty without either."""
    with suppress(OSError):
        return str(path.readlink()) if path.is_symlink() else digest(path)
    return ""


def _place(draft: Path, folder: Path, inner: str) -> None:
    """Move a file of a draft into the folder, but through no link, and into no folder of the same name."""
    target = folder / inner
    target.parent.mkdir(parents=True, exist_ok=True)
    is_behind_link = target.parent.resolve() != folder.resolve() / PurePosixPath(inner).parent
    if is_behind_link or (target.is_dir() and not target.is_symlink()):
        raise OSError(f"here: {target.parent if is_behind_link else target} is in the way; move it")
    (draft / inner).replace(target)
