"""The source of a data set: a folder here, or a folder of the head."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import UsageError
from .wire.manifest import require_name

HEAD = "head:"


@dataclass(frozen=True)
class DataSource:
    """A folder or file here (`here`), or a path of the head (`there`)."""

    name: str
    here: str = ""
    there: str = ""


def source(text: str, name: str) -> DataSource:
    """The source that a user named. `name`: of the set, by default the folder's."""
    if not text:
        raise UsageError("which folder? muster data push FOLDER [NAME]")
    if text.lower().startswith(("http://", "https://")):  # it may have a password: not shown
        raise UsageError("data push URL was removed: use `muster run -- curl -O URL`, or push a folder")
    if text.startswith(HEAD):
        path = text.removeprefix(HEAD)
        if not path:
            raise UsageError(f"{text}: which folder of the head? head:/path")
        return DataSource(_named(path, name, text), there=path)
    if not Path(text).exists():
        raise UsageError(f"{text}: no such file or folder here")
    path = os.path.realpath(text)
    return DataSource(_named(path, name, text), here=path)


def _named(path: str, name: str, text: str) -> str:
    try:
        return require_name(name or path.rstrip("/").rpartition("/")[2])
    except ValueError as error:
        raise UsageError(f"{error}; give another: muster data push {shlex.quote(text)} NAME") from None
