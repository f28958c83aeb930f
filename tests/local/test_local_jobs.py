"""Restarts and detached jobs on this machine alone."""

from __future__ import annotations

import json
import re
import signal

import pytest

from tests.launching import Project, wait_until_clean

AGAIN = """
import os, sys
attempt = os.environ["MUSTER_RESTART"]
print("attempt", attempt, flush=True)
sys.exit(7 if os.environ["RANK"] == "1" and int(attempt) < int(sys.argv[1]) else 0)
"""


@pytest.fixture(autouse=True)
def again(project: Project) -> None:
    (project.path / "again.py").write_text(AGAIN)


@pytest.mark.parametrize("launcher", ["mpirun", pytest.param("torchrun", marks=pytest.mark.soak)])
def test_a_job_that_failed_starts_again_under_the_same_id(project: Project, launcher: str) -> None:
    words = ("--launcher", launcher, "--script", "again.py", "--args=1", "--max-restarts", "3")
    done = project.launch(*words)
    assert done.status == 0, done.output
    assert "rank 1 on localhost: exit status 7; restart 1 of 3 on localhost\n" in done.output
    assert re.search(rf"^job {done.job}, restart 1: 2 ranks", done.output, re.MULTILINE)
    assert (done.result["attempt"], done.result["exit_status"]) == (1, 0)
    (earlier,) = done.result["earlier_attempts"]
    assert (earlier["attempt"], earlier["exit_status"]) == (0, 7)
    logs = done.folder / "logs"
    assert (logs / "rank-0001@localhost.out").read_text() == "attempt 0\n"
    assert (logs / "rank-0001@localhost.restart-1.out").read_text() == "attempt 1\n"


def test_the_last_failure_is_the_verdict(project: Project) -> None:
    done = project.launch("--script", "again.py", "--args=9", "--max-restarts", "1")
    assert done.status == 7
    assert "no restart: that was the last of 1 restart\n" in done.output
    assert "FAILED  rank 1 on localhost: exit status 7" in done.output
    assert f"logs: runs/{done.job}/logs" in done.output


def test_without_being_asked_nothing_starts_again(project: Project) -> None:
    done = project.launch("--script", "again.py", "--args=9", "--env", "MUSTER_RESTART=0")
    assert done.status == 7
    assert "restart 1 of" not in done.output


def test_who_interrupts_the_wait_for_a_restart_has_interrupted_the_job(project: Project) -> None:
    with (project.path / "fabfile.py").open("a") as fabfile:  # a wait that lasts until it is interrupted
        fabfile.write("\nfrom deploy import restart\n\nrestart.BACKOFF_SECONDS = (600.0,)\n")
    with project.start("--script", "again.py", "--args=9", "--max-restarts", "3") as process:
        assert process.stdout is not None
        said = [next(line for line in process.stdout if "restart 1 of 3" in line)]
        process.send_signal(signal.SIGINT)
        said += process.stdout.readlines()
    output = "".join(said)
    assert process.returncode == 130, output
    assert "FAILED  interrupted by SIGINT (2); the job was ended on every host" in output
    note = "note: it was about to start again after this: rank 1 on localhost: exit status 7"
    assert note in output
    (result,) = (project.path / "runs").glob("*/result.json")
    assert json.loads(result.read_text())["exit_status"] == 130


def test_more_hosts_than_there_are_cannot_be_the_fewest(project: Project) -> None:
    done = project.launch("--script", "again.py", "--args=0", "--max-restarts", "1", "--min-hosts", "2")
    assert (done.status, done.output) == (2, "--min-hosts 2: the job has 1 host\n")


def test_a_detached_job_needs_no_ssh_here(project: Project) -> None:
    job = project.detach("--script", "again.py", "--args=1", "--max-restarts", "1")
    attached = project.fab("attach", job)
    assert attached.returncode == 0, attached.stderr
    assert "DONE    2 ranks on 1 host, mpirun" in attached.stdout
    result = json.loads((project.path / "runs" / job / "result.json").read_text())
    assert result["attempt"] == 1
    wait_until_clean(job)
