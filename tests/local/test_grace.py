"""A rank that handles SIGTERM has time to save, whatever ends the job; what it leaves behind has time too."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from muster.deploy.core.interrupts import SAME_SECONDS
from tests.launching import Project
from tests.waiting import wait_until

# Longer than a process without a handler gets, and than mpirun gives its processes.
SAVES = """
import os, signal, sys, time
got = []
signal.signal(signal.SIGTERM, lambda *a: got.append(1))
out, rank = os.environ["MUSTER_OUT"], os.environ["RANK"]
print("ready", flush=True)
while not got:
    if rank == "1" and "fails" in sys.argv and os.path.exists(out + "/go"):
        raise ValueError("boom")
    time.sleep(0.02)
print("saving", len(got), flush=True)
time.sleep(float(sys.argv[1]))
open(f"{out}/saved-{rank}", "w").write(str(len(got)))
"""
UPLOADS = """
import os, subprocess, sys
if os.environ["RANK"] == "0":
    out = os.environ["MUSTER_OUT"]
    for step in sys.argv[1:]:
        subprocess.Popen(["sh", "-c", f"echo begun; sleep {step}; echo uploaded; echo x > {out}/uploaded"])
"""


@pytest.fixture(autouse=True)
def programs(project: Project) -> None:
    (project.path / "saves.py").write_text(SAVES)
    (project.path / "uploads.py").write_text(UPLOADS)


def out_of(project: Project, job: str) -> Path:
    return Path(project.env["HOME"], ".muster/jobs", job, "out")


def saved(project: Project, job: str) -> dict[str, str]:
    """The files of the ranks, with the number of times that each got SIGTERM."""
    return {path.name: path.read_text() for path in out_of(project, job).glob("saved-*")}


def job_of(project: Project, process: subprocess.Popen[str]) -> str:
    """The job, once both ranks are ready."""
    assert process.stdout is not None
    for _ in range(2):
        next(line for line in process.stdout if "ready" in line)
    (folder,) = (project.path / "runs").iterdir()
    return folder.name


LAUNCHERS = ["mpirun", pytest.param("torchrun", marks=pytest.mark.soak)]


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("end", ["ctrl-c", "stop", "failure", "killed driver"])
def test_a_rank_saves_while_the_job_ends(project: Project, launcher: str, end: str) -> None:
    fails = " fails" if end == "failure" else ""
    with project.start("--launcher", launcher, "--script", "saves.py", f"--args=4{fails}") as process:
        job = job_of(project, process)
        if end == "ctrl-c":
            process.send_signal(signal.SIGINT)
        elif end == "killed driver":
            process.kill()
        elif end == "stop":
            stopped = project.muster("stop", job)
            assert stopped.returncode == 0, stopped.stderr
        else:
            (out_of(project, job) / "go").touch()
        assert process.stdout is not None
        output = process.stdout.read()
    ranks = {"saved-0": "1"} if end == "failure" else {"saved-0": "1", "saved-1": "1"}
    wait_until(lambda: saved(project, job) == ranks, "the ranks have saved")
    assert "killed" not in output
    status = {"ctrl-c": 130, "stop": 143, "failure": 1, "killed driver": -signal.SIGKILL}
    assert process.returncode == status[end]


def test_a_detached_job_saves_when_it_is_stopped(project: Project) -> None:
    job = project.detach("--script", "saves.py", "--args=4")
    wait_until(lambda: project.muster("logs", job).stdout.count("ready") == 2, "the ranks are ready")
    stopped = project.muster("stop", job)
    assert stopped.returncode == 0, stopped.stderr
    assert saved(project, job) == {"saved-0": "1", "saved-1": "1"}


@pytest.mark.parametrize("by", ["--grace of launch", "--grace of stop", "a second signal"])
def test_who_takes_longer_is_killed_and_named(project: Project, by: str) -> None:
    grace = ("--grace", "1") if by == "--grace of launch" else ()
    with project.start(*grace, "--script", "saves.py", "--args=600") as process:
        job = job_of(project, process)
        if by == "--grace of stop":
            assert project.muster("stop", job, "--grace", "1").returncode == 0
        else:
            process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        if by == "a second signal":
            for _ in range(2):
                next(line for line in process.stdout if "saving" in line)
            time.sleep(2 * SAME_SECONDS)
            process.send_signal(signal.SIGINT)
        output = process.stdout.read()
    assert "s after SIGTERM: ranks 0-1 on localhost" in output
    assert ("--grace SECONDS gives more time" in output) == (by == "--grace of launch")
    killed = json.loads((project.path / "runs" / job / "result.json").read_text())["killed"]
    assert sorted(each["rank"] for each in killed) == [0, 1]
    assert all(each["program"] and 1 <= each["seconds"] < 600 for each in killed)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_upload_that_a_rank_leaves_behind_is_waited_for(project: Project, launcher: str) -> None:
    done = project.launch("--launcher", launcher, "--script", "uploads.py", "--args=4")
    assert done.status == 0, done.output
    assert (out_of(project, done.job) / "uploaded").exists()
    assert "[0 localhost] uploaded\n" in done.output
    assert "left behind" not in done.output


def test_what_a_rank_leaves_behind_for_longer_is_ended_and_named(project: Project) -> None:
    done = project.launch("--grace", "1", "--script", "uploads.py", "--args=600")
    assert done.status == 0, done.output
    assert "left behind: sh of rank 0 on localhost (process " in done.output
    killed = done.result["killed"]
    assert {(each["name"], each["rank"], each["program"]) for each in killed} >= {("sh", 0, False)}
