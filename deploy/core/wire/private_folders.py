"""Folders that only their user can enter, and whether hosts share one over a network file system."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path

from .durable import sync_folder, write_atomically

_LENGTH = 32
_TEXT = re.compile(rf"[0-9a-f]{{{_LENGTH}}}")


def make_private(*folders: Path) -> None:
    """Make folders that only their user can enter."""
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)


def identity_of_folder(path: Path) -> str:
    """The random text of this file, written by the first host that asks: equal where the folder is shared."""
    with contextlib.suppress(FileNotFoundError):
        text = _start_of(path)
        if _TEXT.fullmatch(text):
            return text
        path.unlink()  # damaged: two hosts that each have an empty file share no folder
    with contextlib.suppress(FileExistsError):
        draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        write_atomically(draft, secrets.token_hex(_LENGTH // 2).encode())
        try:
            os.link(draft, path)  # fails if another host was first
        finally:
            draft.unlink()
        sync_folder(path.parent)
    return _start_of(path)


def _start_of(path: Path) -> str:
    """The beginning of a file, one character longer than its text: any host of the folder may write it."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(_LENGTH + 1)
