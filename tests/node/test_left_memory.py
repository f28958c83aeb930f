"""What a killed rank leaves in shared memory is named, and nothing that a process still uses."""

from __future__ import annotations

import dataclasses
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.deploy.core.job.result import Failure, LaunchResult
from muster.deploy.core.wire.clock import now
from muster.deploy.features.clean.command import clean_hosts
from muster.deploy.features.clean.driver import LeftInMemory
from muster.deploy.features.clean.messages import LeftMemory
from muster.deploy.features.clean.on_host.left_memory import left_in_memory
from tests.hosts_here import HostsHere
from tests.unit.attempts import attempt_of
from tests.unit.plans import make_plan

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
