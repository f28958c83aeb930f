"""Tells hosts that share a folder, over a network file system, from hosts that have one each."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path

from .durable import sync_folder, write_atomically

_WORD = re.compile(r"[0-9a-f]{32}")


def word_in(path: Path) -> str:
    """The random word in this file, written by the first host that asks: equal where the folder is shared."""
    with contextlib.suppress(FileNotFoundError):
        word = path.read_text(errors="replace")
        if _WORD.fullmatch(word):
            return word
        path.unlink()  # damaged: two hosts that each have an empty file share no folder
    with contextlib.suppress(FileExistsError):
        draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        write_atomically(draft, secrets.token_hex(16).encode())
        try:
            os.link(draft, path)  # fails if another host was first
        finally:
            draft.unlink()
        sync_folder(path.parent)
    return path.read_text()
