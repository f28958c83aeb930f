"""Who holds up a rank: a process with the lock of a file, children that have ended."""

from __future__ import annotations

import dataclasses
import fcntl
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.job.result import Failure, LaunchResult
from muster.deploy.core.wire.clock import now
from muster.deploy.features.clean.command import clean_hosts
from muster.deploy.features.clean.driver import LeftInMemory
from muster.deploy.features.clean.messages import LeftMemory
from muster.deploy.features.clean.on_host.left_memory import left_in_memory
from muster.deploy.features.why.on_host.evidence import children, file_lock
from tests.hosts_here import HostsHere
from tests.unit.attempts import attempt_of
from tests.unit.plans import make_plan
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


# -- what a killed rank leaves in shared memory is named, and nothing that a process still uses --


FAILED = LaunchResult(
    plan=make_plan("node1"), started=1.0, ended=2.0, failure=Failure("rank", "SIGKILL (9)", 137), ends={}
)


@pytest.fixture
def file() -> Iterator[Path]:
    path = Path(f"/dev/shm/muster-test-{os.getpid()}")
    path.write_bytes(bytes(16 << 20))  # more than programs beside this test leave
    yield path
    path.unlink(missing_ok=True)


def test_a_file_counts_when_no_process_has_it_open_or_mapped(file: Path) -> None:
    since = file.stat().st_ctime

    def names() -> bool:
        return bool(left_in_memory(since)["largest"] == file.name)

    assert names()
    with file.open("rb") as opened:
        assert not names()
        mapped = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
    assert not names()
    mapped.close()
    assert names()
    assert left_in_memory(time.time() + 60) == {"files": 0, "bytes": 0, "largest": ""}


def test_the_verdict_of_a_failed_job_and_clean_name_them(tmp_path: Path, file: Path) -> None:
    with HostsHere(tmp_path, 1).cluster() as cluster:
        attempt = dataclasses.replace(attempt_of(FAILED.plan, cluster), began=now() - 60)
        (note,) = LeftInMemory().ended(attempt, FAILED).notes
        assert note.startswith("left in the memory of node1: ")
        assert f"(largest: {file.name})" in note
        done = dataclasses.replace(FAILED, failure=None)
        assert LeftInMemory().ended(attempt, done) == done
        memory = clean_hosts(cluster, 0.0, results=False).results["node1"].memory
    assert memory and memory.files >= 1


def test_what_is_left_is_described_in_a_line() -> None:
    assert LeftMemory(2, 64 << 20, "sem.\x1b[2Ja").described == (
        "2 files in /dev/shm, 64 MiB (largest: sem.␛[2Ja)"
    )
    assert LeftMemory(0, 0, "").described == ""
