"""What programs print on a terminal of a test."""

from __future__ import annotations

import os


def shown_on(terminal: int) -> str:
    """Everything that comes until the last program has closed the other end, which then is EIO (Linux)."""
    shown = b""
    while piece := _read(terminal):
        shown += piece
    return shown.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""
