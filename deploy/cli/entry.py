"""The entry point of `muster`. It handles Ctrl-C from the start, also during the other imports."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

PACKAGES = {"Muster": "muster-cluster", "Fabric": "fabric", "Invoke": "invoke", "Paramiko": "paramiko"}
INTERRUPTED = 128 + signal.SIGINT


def _end(number: int, frame: FrameType | None) -> None:
    """Exit at once: nothing has started. A command installs its own handler (cli/command.py)."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def _version_of(package: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def main() -> None:
    """`muster`."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # ignored in background jobs of scripts
        signal.signal(signal.SIGINT, _end)
    if sys.argv[1:] in (["--version"], ["-V"]):
        sys.stdout.write("".join(f"{name} {_version_of(package)}\n" for name, package in PACKAGES.items()))
        return
    from .dispatch import main as program  # in which Ctrl-C must work

    program()
