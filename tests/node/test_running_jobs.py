"""The jobs of all users on a host, by the command lines of their ranks, and the GPUs that they use."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.deploy.core.agent import facts, running_jobs
from muster.deploy.core.wire.users import name_of
from tests.waiting import wait_until

JOB = f"20261125-171559-{os.getpid() % 0x10000:04x}"
WAITS = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    """A process with the arguments of a rank, and its program below it."""
    words = (sys.executable, "-c", WAITS, f"/home/ada/.muster/jobs/{JOB}/bin/rank.py", "train.py")
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        yield process
        process.communicate()


def own() -> list[dict[str, object]]:
    return [job for job in running_jobs.running_jobs() if job["job"] == JOB]


def test_a_job_is_found_by_the_command_line_of_its_ranks(rank: subprocess.Popen[bytes]) -> None:
    (job,) = wait_until(own, "the process")
    assert (job["user"], job["gpus"]) == (name_of(os.getuid()), [])
    assert 0 <= float(str(job["seconds"])) < 3600


def test_its_gpus_are_those_of_the_processes_below_its_ranks(
    rank: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = Path(f"/proc/{rank.pid}/task/{rank.pid}/children")
    (program,) = wait_until(lambda: children.read_text().split(), "the program")
    for address in ("0000:4e:00.0", "0000:0f:00.0", "0000:9a:00.0"):
        (tmp_path / "gpus" / address).mkdir(parents=True)
    answer = f"00000000:4E:00.0, {program}\\n00000000:9A:00.0, 1\\nNo devices\\n00000000:0F:00.0, [N/A]\\n"
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\nprintf '{answer}'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(running_jobs, "GPUS", str(tmp_path / "gpus"))
    (job,) = own()
    assert job["gpus"] == [1]


def test_facts_await_no_unreadable_process(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(facts, "JOBS_SECONDS", 0.0)
    monkeypatch.setattr(facts, "running_jobs", released.wait)
    assert facts.facts()["jobs"] == []
    released.set()
