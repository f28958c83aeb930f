"""Who holds up a rank: a process with the lock of a file, children that have ended."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.features.why.on_host.evidence import children, file_lock
from tests.waiting import wait_until

LOCKS: dict[str, Callable[..., Any]] = {
    "fcntl.flock(file, fcntl.LOCK_EX)": fcntl.flock,
    "fcntl.lockf(file, fcntl.LOCK_EX)": fcntl.lockf,
}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_wait_for_a_file_lock_shows_the_file_and_its_holder(tmp_path: Path, lock: str) -> None:
    path = tmp_path / "index.lock"
    with path.open("w") as file:
        LOCKS[lock](file, fcntl.LOCK_EX)
        waits = f"import fcntl; file = open({str(path)!r}, 'w'); {lock}"
        with subprocess.Popen([sys.executable, "-c", waits]) as process:
            try:
                found = wait_until(lambda: file_lock(process.pid, {os.getpid(): 3}) or {}, "it to wait")
            finally:
                process.kill()
    assert (found["path"], found["pid"], found["rank"]) == (str(path), os.getpid(), 3)
    assert Path(sys.executable).name in found["program"]
    assert file_lock(os.getpid(), {}) is None


def test_a_lock_of_another_container_has_no_process(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "locks").write_text(
        "1: FLOCK  ADVISORY  WRITE 12 00:2e:5 0 EOF\n"
        "2: OFDLCK ADVISORY  WRITE -1 00:2e:9 0 EOF\n"
        "2: -> POSIX  ADVISORY  WRITE 77 00:2e:9 0 EOF\n"
        "3: -> malformed\n"
    )
    assert file_lock(77, {}, str(tmp_path)) == {"path": "", "pid": 0, "program": "", "rank": None}
    assert file_lock(78, {}, str(tmp_path)) is None


PARENT = """
import subprocess, sys, time
ends = ["import os; os._exit(3)", "import os; os.kill(os.getpid(), 9)", "import time; time.sleep(100)"]
started = [subprocess.Popen([sys.executable, "-c", code]) for code in ends]
print(*(process.pid for process in started), flush=True)
sys.stdin.read()
started[2].kill()
"""


def test_children_that_have_ended_come_first_with_their_exit_codes() -> None:
    """Below a process of its own: the process of the tests may have more children than a report lists."""
    words = [sys.executable, "-c", PARENT]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin and parent.stdout
        pids = [int(word) for word in parent.stdout.readline().split()]

        def both_ended() -> list[Any]:
            found = children({5: parent.pid}).get(5, [])
            return found if [child["code"] for child in found].count(None) == 1 else []

        found = wait_until(both_ended, "two of three to end")
        parent.stdin.close()
    assert {child["pid"]: child["code"] for child in found} == dict(zip(pids, (3, -9, None), strict=True))
    assert found[-1]["program"].endswith("time.sleep(100)")
