"""The source of a data set: a folder here, a folder of the head, or a web server that the head asks."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from ..common.data.manifest import require_name
from ..errors import UsageError

HEAD = "head:"


@dataclass(frozen=True)
class DataSource:
    """A folder or file here (`here`), a path of the head (`there`), or a URL; one of them.

    `sha256`: the digest that the file of a URL must have, if the user knows it.
    """

    name: str
    here: str = ""
    there: str = ""
    url: str = ""
    sha256: str = ""


def source(text: str, name: str, sha256: str = "") -> DataSource:
    """The source that a user named. `name`: of the set, by default the folder's."""
    if not text:
        raise UsageError("which folder? muster data push FOLDER [NAME]")
    if re.match(r"https?://", text):
        path = _checked(text).path
        if sha256 and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
            raise UsageError(f"--sha256 {sha256}: write 64 hexadecimal digits, as sha256sum prints them")
        return DataSource(_named(unquote(path), name, text), url=text, sha256=sha256.lower())
    if sha256:
        raise UsageError(f"--sha256 checks a download, and {text} is not a URL; leave it out")
    if text.startswith(HEAD):
        path = text.removeprefix(HEAD)
        if not path:
            raise UsageError(f"{text}: which folder of the head? head:/path")
        return DataSource(_named(path, name, text), there=path)
    if re.match(r"[a-z]+://", text):
        raise UsageError(f"{text}: write a folder of this machine, head:/path, or a URL with http or https")
    if not Path(text).exists():
        raise UsageError(f"{text}: no such file or folder here")
    path = os.path.realpath(text)
    return DataSource(_named(path, name, text), here=path)


def _checked(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UsageError(f"{url}: no URL: {error}") from None
    if parts.username or parts.password:
        raise UsageError("a URL with a password would be on command lines: fetch it yourself, then push")
    if not parts.hostname or re.search(r"[^!-~]", url):
        raise UsageError(f"{url}: no URL; write spaces and letters beyond ASCII as %20")
    return parts


def _named(path: str, name: str, text: str) -> str:
    try:
        return require_name(name or path.rstrip("/").rpartition("/")[2])
    except ValueError as error:
        raise UsageError(f"{error}; give another: muster data push {shlex.quote(text)} NAME") from None
