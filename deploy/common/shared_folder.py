"""Tells hosts that share a folder, over a network file system, from hosts that have one each."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def word_in(path: Path) -> str:
    """The random word in this file, written by the first host that asks: equal where the folder is shared."""
    with contextlib.suppress(FileExistsError):
        draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        draft.write_text(secrets.token_hex(16))
        try:
            os.link(draft, path)  # fails if another host was first
        finally:
            draft.unlink()
    return path.read_text()
