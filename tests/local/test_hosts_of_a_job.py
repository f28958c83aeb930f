"""Commands that take a job ask the hosts of its launch, whatever hosts.txt says by then."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launching import MUSTER, Project, wait_until_clean
from tests.waiting import PATIENCE, read_until, wait_until

PROGRAM = """
import os
step = 7
def train():
    print("ready", flush=True)
    open(os.environ["GO"]).close()
train()
"""
"""Its ranks wait in one call, so that they have the same stack at any moment, until a FIFO has a writer."""
ELSEWHERE = "127.0.0.2 port=1\n"
"""Another cluster, which does not answer: whoever asks it says so."""


class Running:
    """A recorded job on the second cluster: hosts.txt names the first."""

    def __init__(self, project: Project, job: str, go: Path, started: Path) -> None:
        self.project, self.job, self.go, self._started = project, job, go, started

    def agents(self) -> int:
        """How many agents were started with the Python of the launch."""
        return len(self._started.read_text().splitlines())

    def folder(self) -> Path:
        return self.project.path / "runs" / self.job


@pytest.fixture
def launched(project: Project, tmp_path: Path) -> tuple[list[str], Path]:
    """The words that launch the job, and a file with a line for each agent that its Python has started."""
    (project.path / "train.py").write_text(PROGRAM)
    (project.path / "hosts.txt").write_text(ELSEWHERE)
    (project.path / "second.txt").write_text("localhost slots=2\n")
    os.mkfifo(tmp_path / "go")
    started, python = tmp_path / "started", tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho >>{started}\nexec {MUSTER.parent}/python "$@"\n')
    python.chmod(0o700)
    words = ["--hosts", "second.txt", "--python", str(python), "--env", f"GO={tmp_path}/go"]
    return [*words, "--script", "train.py"], started


@pytest.fixture
def job(project: Project, tmp_path: Path, launched: tuple[list[str], Path]) -> Iterator[Running]:
    words, started = launched
    with project.start(*words) as driver:
        found = re.search(r"job (\S+):", "".join(read_until(driver, "ready", 2)))
        assert found
        yield Running(project, found[1], tmp_path / "go", started)
        (tmp_path / "go").open("w").close()
        driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 0


def test_a_command_asks_the_hosts_of_its_job_and_no_others(job: Running) -> None:
    muster, agents = job.project.muster, job.agents()
    commands = {
        ("why", job.job[-4:]): "ranks 0-1 are in train",
        ("stacks", job.job): "ranks 0-1:\n    train (train.py:",
        ("eval", job.job, "step"): "ranks 0-1: 7\n",
    }
    for words, said in commands.items():
        done = muster(*words)
        assert said in done.stdout, (words, done)
        assert (done.returncode, done.stderr) == (0, ""), words
    assert job.agents() == agents, "a Python that a file names ran on this machine"
    newest = muster("stacks")  # it runs here, so no host is asked for a newer one
    assert (newest.returncode, newest.stderr) == (0, f"job {job.job}\n")
    assert newest.stdout == muster("stacks", job.job).stdout
    asked = muster("stacks", "--hosts", "hosts.txt")  # these hosts may have a newer one
    assert (asked.returncode, asked.stdout) == (0, newest.stdout)
    assert re.match("127.0.0.2: .*Connection refused", asked.stderr)
    assert f"\njob {job.job}\n" in asked.stderr


def test_another_hosts_file_is_refused_in_a_line_and_a_job_without_a_record_falls_back(job: Running) -> None:
    muster = job.project.muster
    other = muster("stacks", job.job, "--hosts", "hosts.txt")
    assert (other.returncode, other.stdout[:12]) == (0, "ranks 0-1:\n ")
    assert other.stderr == (
        f"{job.job}: its own hosts are asked, which its launch has recorded, not those of --hosts hosts.txt\n"
    )
    (job.folder() / "hosts.json").unlink()
    lost = muster("why", job.job)
    assert (lost.returncode, lost.stdout) == (2, "")
    assert lost.stderr == (
        f"{job.job} is on localhost, and hosts.txt has none of these; name another hosts file: --hosts FILE\n"
    )
    named = muster("stacks", job.job, "--hosts", "second.txt")
    assert (named.returncode, named.stdout[:12]) == (0, "ranks 0-1:\n ")
    assert named.stderr == (
        f"{job.job}: no record here of how its hosts are reached, so the hosts of second.txt are asked\n"
    )


def test_a_job_that_is_over_is_no_success_of_why(project: Project) -> None:
    (project.path / "train.py").write_text("print('ready')")
    job = project.launch("--script", "train.py").job
    done = project.muster("why", job)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"no rank of {job} runs on localhost; the job is done\n"


def test_its_own_head_is_asked(project: Project, tmp_path: Path, launched: tuple[list[str], Path]) -> None:
    job = project.detach(*launched[0])
    wait_until(lambda: project.muster("logs", job).stdout.count("ready") == 2, "the ranks to wait")
    for words, said in {("status", job): ", detached\n", ("stacks", job): "train (train.py:"}.items():
        done = project.muster(*words)
        assert (done.returncode, done.stderr) == (0, ""), (words, done)
        assert said in done.stdout
    (tmp_path / "go").open("w").close()
    attached = project.muster("attach", job)
    assert (attached.returncode, attached.stderr) == (0, "")
    assert "DONE    2 ranks on 1 host" in attached.stdout
    files = {path.name for path in (project.path / "runs" / job).iterdir()}
    assert {"hosts.json", "job.json", "result.json"} <= files
    logs = project.muster("logs", job)
    assert (logs.returncode, logs.stdout.count("ready"), logs.stderr) == (0, 2, "")
    wait_until_clean(job)


def test_its_own_head_stops_it(project: Project, launched: tuple[list[str], Path]) -> None:
    job = project.detach(*launched[0])
    stopped = project.muster("stop", job)
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert " stopped by muster stop, by " in stopped.stdout
    wait_until_clean(job)
