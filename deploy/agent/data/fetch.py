"""Fetches a file from a web server to this host, and continues where an interrupted attempt stopped."""

from __future__ import annotations

import contextlib
import hashlib
import http
import http.client
import os
import re
import shlex
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ...common.durable import put_in_place, read_sealed, write_sealed
from ...common.files import digest
from ...common.runs import identity
from ...common.web import open_url

CHUNK = 1 << 20
SILENCE_SECONDS = 60.0
SPARE = 1 << 27
OnProgress = Callable[[int, int], None]


def fetch(url: str, root: Path, most: int, on_progress: OnProgress, sha256: str = "") -> Path:
    """Fetch a file into a separate folder below `root`; returns that folder.

    OSError if the server refuses, sends more than `most` bytes, or less than it promised, or another file
    than that of `sha256`.
    """
    folder = _fetched(url, root, most, on_progress)
    path = folder / name_of(url)
    if sha256 and (actual := digest(path)) != sha256:
        path.unlink()
        raise OSError(f"the file at {url} is not that of --sha256: its SHA-256 is {actual}")
    return folder


def _fetched(url: str, root: Path, most: int, on_progress: OnProgress) -> Path:
    folder = root / hashlib.sha256(url.encode()).hexdigest()[:32]
    target = folder / name_of(url)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    part, note = folder.with_suffix(".part"), folder.with_suffix(".json")
    try:
        if target.exists():  # of a push that was interrupted after this
            if _is_current(url, note):
                os.utime(target)
                return folder
            target.unlink()
        with _begin(url, part, note) as answer:
            _receive(answer, part, most, on_progress)
    except urllib.error.HTTPError as error:
        raise OSError(f"the server refuses {url}: {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise OSError(f"cannot fetch {url}: {error.reason}") from None
    except http.client.HTTPException as error:
        raise OSError(f"cannot fetch {url}: the server's answer broke off ({type(error).__name__})") from None
    put_in_place(part, target)
    return folder


def name_of(url: str) -> str:
    """The name of the file behind a URL: its last part, without unusual characters."""
    last = unquote(urlsplit(url).path).rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._+-]", "_", last).lstrip(".")[:200] or "file"


def _begin(url: str, part: Path, note: Path) -> Any:
    """The server's answer; from the beginning if the server refuses to resume."""
    try:
        return _rest(url, part, note)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not part.exists():
            raise
    part.unlink()  # it is whole, or was of a larger file
    return _rest(url, part, note)


def _is_current(url: str, note: Path) -> bool:
    """Whether the server still has the fetched content; False if unknown."""
    mark = _mark(note)
    if not mark:
        return False
    try:
        _open(url, {"If-None-Match": mark}).close()
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.NOT_MODIFIED:
            raise
        return True
    return False


def _mark(note: Path) -> str:
    """The server's ETag of a file that was begun or fetched; empty if it sent none."""
    with contextlib.suppress(TypeError, KeyError):
        return str(read_sealed(note)["mark"])
    return ""


def _resumable(note: Path) -> str:
    """The mark of a file that was begun since this host was started: a crash may have lost its bytes."""
    with contextlib.suppress(TypeError, KeyError):
        return _mark(note) if read_sealed(note)["boot"] == identity()["boot"] else ""
    return ""


def _open(url: str, headers: Mapping[str, str]) -> Any:
    """The server's answer."""
    request = urllib.request.Request(  # noqa: S310  # open_url takes http and https alone
        url, headers={"User-Agent": "muster", "Accept-Encoding": "identity", **headers}
    )
    return open_url(request, SILENCE_SECONDS)


def _rest(url: str, part: Path, note: Path) -> Any:
    """The server's answer: the rest of the file if a part of it is present and the file has not changed."""
    mark = _resumable(note)
    headers = {}
    if mark and part.exists():
        headers = {"Range": f"bytes={part.stat().st_size}-", "If-Range": mark}
    answer = _open(url, headers)
    begins = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range") or "")
    if answer.status != 206 or not begins or int(begins[1]) != part.stat().st_size:
        if answer.status == 206:
            raise OSError(f"the server sent another part of {url} than requested")
        part.write_bytes(b"")
    # A weak mark (W/"...") does not promise the same bytes: then an interrupted attempt begins again.
    tag = answer.headers.get("ETag") or ""
    write_sealed(note, {"mark": "" if tag.startswith("W/") else tag, "boot": identity()["boot"]})
    return answer


def _receive(answer: Any, part: Path, most: int, on_progress: OnProgress) -> None:
    have = part.stat().st_size
    length = answer.headers.get("Content-Length")
    total = have + int(length) if length and length.isdigit() else 0
    free = shutil.disk_usage(part.parent).free
    if total > most:
        raise OSError(
            f"the file has {total / 1e9:.1f} GB, and at most {most / 1e9:.1f} GB are allowed: --most"
        )
    if total - have + SPARE > free:
        folder = shlex.quote(str(part.parent))
        raise OSError(f"the file has {total / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free: df -h {folder}")
    with open(part, "ab") as file:
        while content := answer.read(CHUNK):
            have += len(content)
            if have > most:
                raise OSError(f"the server sends more than the {most / 1e9:.1f} GB that are allowed: --most")
            file.write(content)
            on_progress(have, max(total, have))
    if total and have != total:
        raise OSError(f"only {have} of {total} bytes arrived; push again to resume")
