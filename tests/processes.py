"""Whether a process of this machine lives; for the tests that demand that none is left."""

from __future__ import annotations

import time
from pathlib import Path

from tests.load import stretched


def is_alive(pid: int) -> bool:
    """Whether it runs: a zombie has ended. It may vanish between any two looks, so there is one look only."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def wait_until_gone(pid: int, seconds: float = 5.0) -> None:
    """What a test starts to be ended would live for a minute or two."""
    deadline = time.monotonic() + stretched(seconds)
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)
