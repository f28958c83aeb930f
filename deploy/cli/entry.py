"""The entry point of `muster`. It handles Ctrl-C from the start, also during the other imports."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT


def _end(number: int, frame: FrameType | None) -> None:
    """Exit at once: nothing has started. A command installs its own handler (cli/command.py)."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def main() -> None:
    """`muster`."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # ignored in background jobs of scripts
        signal.signal(signal.SIGINT, _end)
    if sys.argv[1:] in (["--version"], ["-V"]):
        from .versions import versions  # alone, in half the time of a command

        sys.stdout.write(versions())
        return
    from .dispatch import main as program  # in which Ctrl-C must work

    program()
