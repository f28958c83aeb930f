"""Tells hosts that share a folder, over a network file system, from hosts that have one each."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path

from .durable import sync_folder, write_atomically

_LENGTH = 32
_WORD = re.compile(rf"[0-9a-f]{{{_LENGTH}}}")


def word_in(path: Path) -> str:
    """The random word in this file, written by the first host that asks: equal where the folder is shared."""
    with contextlib.suppress(FileNotFoundError):
        word = _start_of(path)
        if _WORD.fullmatch(word):
            return word
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
    """What a file begins with, one character more than a word has: any host of the folder may write it."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(_LENGTH + 1)
