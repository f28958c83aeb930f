"""Files and folders to and from every host at once: whole, and as they were, or not at all."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ..common.files import PART, Entry, append, complete, digest, entries
from ..common.frames import Frame
from ..connect.channel import Channel, wait
from ..connect.cluster import Cluster
from ..connect.fanout import on_every
from ..decode import from_json
from ..errors import MusterError, UsageError

TRANSFER_SECONDS = 600.0
# Requests that are on their way to one host, and the bytes that they may bring: small files need not wait
# for each other, and many hosts not fill this machine's memory.
IN_FLIGHT, BYTES_IN_FLIGHT = 64, 2 * PART


def put(cluster: Cluster, source: Path, target: str) -> None:
    """Bring a file or folder to every host: into place everywhere, or, if one cannot take it, nowhere."""
    what = _describe(source)
    name, folder = source.resolve().name, source.is_dir()

    def send(channel: Channel) -> str:
        draft = str(channel.ask("draft", path=target, name=name, folder=folder)["draft"])
        for _ in _answers(channel, _parts_to(source, draft, what)):
            pass
        channel.ask("verify", draft=draft, seconds=TRANSFER_SECONDS, **what)
        return draft

    drafts = on_every(cluster, send)
    on_every(cluster, lambda channel: channel.ask("settle", draft=drafts[channel.host]))


def get(cluster: Cluster, source: str, folder: Path) -> list[Path]:
    """Bring a file or folder of every host here, each under its host's name: `metrics@node1.jsonl`."""
    name = PurePosixPath(source)
    if name.name in {"", ".."}:
        raise UsageError(f"{source}: which file or folder? give it by its name")
    folder.mkdir(parents=True, exist_ok=True)

    def receive(channel: Channel) -> Path:
        told = channel.ask("file", path=source, seconds=TRANSFER_SECONDS)
        is_folder = "entries" in told
        suffix = "" if is_folder else name.suffix
        target = folder / f"{name.name.removesuffix(suffix)}@{channel.host}{suffix}"
        if is_folder and os.path.lexists(target):
            raise MusterError(f"{target} is here already; remove it, or give another place")
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            (_receive_folder if is_folder else _receive)(channel, source, draft, told)
            draft.chmod(int(told["mode"]) & 0o777)
            draft.replace(target)
        finally:
            _forget(draft)
        return target

    found = on_every(cluster, receive)
    return [found[host] for host in cluster.channels]


def _describe(source: Path) -> dict[str, Any]:
    """What hosts are told of a file or folder, to check it; `UsageError` for what is neither."""
    try:
        mode = source.stat().st_mode & 0o777
        if source.is_dir():
            return {"mode": mode, "entries": list(entries(str(source)))}
        if source.is_file():
            return {"mode": mode, "digest": digest(str(source))}
    except FileNotFoundError:
        raise UsageError(f"{source}: no such file or folder") from None
    except OSError as error:
        raise UsageError(f"{error.filename or source}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    raise UsageError(f"{source}: neither a file nor a folder")


def _parts_to(source: Path, draft: str, what: Mapping[str, Any]) -> Iterator[_Request]:
    """What brings the content of a file, or of every file of a folder."""
    if "entries" not in what:
        yield from _parts(source, {"draft": draft})
        return
    for entry in what["entries"]:
        if entry.kind == "file":
            yield from _parts(source / entry.path, {"draft": draft, "path": entry.path})


def _parts(path: Path, words: Mapping[str, str]) -> Iterator[_Request]:
    with path.open("rb") as file:
        while part := file.read(PART):
            yield _Request("append", words, len(part), part)


def _receive(channel: Channel, source: str, draft: Path, told: Frame) -> None:
    draft.touch(0o600)
    _fetch(channel, draft, [(source, "", int(told["length"]))])
    if digest(str(draft)) != told["digest"]:
        raise MusterError(f"{source} changed or was damaged on the way; try again")


def _receive_folder(channel: Channel, source: str, draft: Path, told: Frame) -> None:
    draft.mkdir(0o700)
    found = [_entry(one) for one in told["entries"]]
    files = [entry for entry in found if entry.kind == "file"]
    _fetch(channel, draft, [(f"{source}/{one.path}", one.path, one.length) for one in files])
    complete(str(draft), found)


def _entry(told: object) -> Entry:
    """What a host says of something in a folder; it may say anything."""
    path, kind, mode, length, sha256, link = from_json(list, told)
    path, kind, sha256, link = (from_json(str, one) for one in (path, kind, sha256, link))
    return Entry(path, kind, from_json(int, mode), from_json(int, length), sha256, link)


def _fetch(channel: Channel, draft: Path, files: Iterable[tuple[str, str, int]]) -> None:
    """Bring files, each `(path there, path in the draft, bytes)`, into a draft."""
    parts = [(there, here, start) for there, here, length in files for start in range(0, length, PART)]
    requests = (_Request("part", {"path": there, "start": start}, PART) for there, _, start in parts)
    for (_, here, _), answer in zip(parts, _answers(channel, requests), strict=True):
        append(str(draft), here, answer["payload"])


class _Request(NamedTuple):
    do: str
    words: Mapping[str, Any]
    weight: int
    """Bytes that it brings, or asks for at most."""
    payload: bytes = b""


def _answers(channel: Channel, requests: Iterable[_Request]) -> Iterator[Frame]:
    """The answers in order, with some of the requests on their way at any time."""
    flying: deque[tuple[Future[Frame], int]] = deque()
    for request in requests:
        while (
            len(flying) >= IN_FLIGHT or request.weight + sum(weight for _, weight in flying) > BYTES_IN_FLIGHT
        ):
            yield wait(flying.popleft()[0], channel.host, TRANSFER_SECONDS)
        flying.append((channel.post(request.do, request.payload, **request.words), request.weight))
    for future, _ in flying:
        yield wait(future, channel.host, TRANSFER_SECONDS)


def _forget(draft: Path) -> None:
    if draft.is_dir():
        shutil.rmtree(draft, ignore_errors=True)
    draft.unlink(missing_ok=True)
