"""Restarts and detached jobs on this machine alone."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.interrupts import SAME_SECONDS
from muster.deploy.core.wire.job_folders import is_held
from tests.launching import FAB, Project, wait_until_clean
from tests.slurm import put_slurm_of_this_machine
from tests.waiting import wait_until

AGAIN = """
import os, socket, struct, sys
attempt = os.environ.get("MUSTER_RESTART", "0")
print("attempt", attempt, flush=True)
with socket.socket(socket.AF_UNIX) as agent:
    agent.connect(os.environ["MUSTER_AGENT"] + "/agent")
    peer = agent.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
with open(os.environ["MUSTER_OUT"] + "/agents", "a") as file:
    file.write(f"{struct.unpack('3i', peer)[0]}\\n")
sys.exit(7 if os.environ["RANK"] == "1" and int(attempt) < int(sys.argv[1]) else 0)
"""

mostly_mpirun = pytest.mark.parametrize(
    "launcher", ["mpirun", pytest.param("torchrun", marks=pytest.mark.soak)]
)


@pytest.fixture(autouse=True)
def again(project: Project) -> None:
    (project.path / "again.py").write_text(AGAIN)


@mostly_mpirun
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
    agents = Path(project.env["HOME"], ".muster/jobs", done.job, "out/agents").read_text().splitlines()
    assert len(agents) > 2  # rank 0 of the first attempt may be ended before
    assert len({*agents}) == 1, "the host was connected again"


def test_who_interrupts_the_wait_for_a_restart_has_interrupted_the_job(project: Project) -> None:
    with (project.path / "fabfile.py").open("a") as fabfile:  # a wait that lasts until it is interrupted
        fabfile.write("\nfrom muster.deploy.core.job import restart_policy\n")
        fabfile.write("\nrestart_policy.BACKOFF_SECONDS = (600.0,)\n")
    fab = replace(project, program=FAB)  # it runs the file
    with fab.start("--script", "again.py", "--args=9", "--max-restarts", "3") as process:
        assert process.stdout is not None
        said = [next(line for line in process.stdout if "restart 1 of 3" in line)]
        process.send_signal(signal.SIGINT)
        said += process.stdout.readlines()
    output = "".join(said)
    assert process.returncode == 130, output
    assert "STOPPED by SIGINT (2); the job was ended on every host" in output
    note = "note: it was about to start again after this: rank 1 on localhost: exit status 7"
    assert note in output
    (result,) = (project.path / "runs").glob("*/result.json")
    assert json.loads(result.read_text())["exit_status"] == 130


def test_a_detached_job_needs_no_ssh_here(project: Project) -> None:
    job = project.detach("--script", "again.py", "--args=1", "--max-restarts", "1")
    attached = project.muster("attach", job)
    assert attached.returncode == 0, attached.stderr
    assert "DONE    2 ranks on 1 host, mpirun" in attached.stdout
    result = json.loads((project.path / "runs" / job / "result.json").read_text())
    assert result["attempt"] == 1
    wait_until_clean(job)
    newest, named = project.muster("logs"), project.muster("logs", job)
    assert (newest.stdout, newest.stderr, named.stderr) == (named.stdout, f"job {job}\n", "")
    for command in ("why", "stacks", "attach"):
        none = project.muster(command)
        assert (none.returncode, " runs here" in none.stderr) == (2, True), none.stderr


# Rank 0 says when it is asked to end, and ends when the test wants that: until then the job is being ended.
STUBBORN = """
import os, pathlib, signal, sys, time
out = pathlib.Path(os.environ["MUSTER_OUT"])
def ending(number, frame):
    (out / "ending").touch()
signal.signal(signal.SIGTERM, ending)
(out / ("started-" + os.environ["RANK"])).touch()
while not (out / "started-0").exists() or not (out / "started-1").exists():
    time.sleep(0.01)
if os.environ["RANK"] == "1" and sys.argv[1:] == ["fail"]:
    sys.exit(5)
while not (out / "leave").exists():
    time.sleep(0.01)
"""


@dataclass(frozen=True)
class Ending:
    """A detached job of STUBBORN."""

    job: str
    folder: Path

    def interrupt(self, when: str) -> None:
        """Tell the job's driver to stop, as `muster stop` does, once its ranks have left this file."""
        driver = json.loads((self.folder / "run" / "job.json").read_text())["driver"]["pid"]
        while not (self.folder / "out" / when).exists() and is_held(self.folder / "run"):
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):
            os.kill(driver, signal.SIGTERM)

    def wait_until_known(self) -> None:
        """Wait until the driver has noted that a rank failed: mpirun may end the others before that."""
        events = self.folder / "run" / "events.jsonl"
        while not (events.exists() and '"rank.failed"' in events.read_text()) and is_held(
            self.folder / "run"
        ):
            time.sleep(0.01)

    def end(self) -> tuple[dict[str, Any], str]:
        """Let rank 0 end; return the result and the verdict, when nothing of the job is left."""
        (self.folder / "out" / "leave").touch()
        while is_held(self.folder / "run"):
            time.sleep(0.05)
        assert self.folder.is_dir(), "the folder of the job is gone"
        wait_until_clean(self.job)
        run = self.folder / "run"
        return json.loads((run / "result.json").read_text()), (run / "verdict.txt").read_text()


def stubborn(project: Project, *words: str) -> Ending:
    (project.path / "stubborn.py").write_text(STUBBORN)
    job = project.detach("--script", "stubborn.py", *words)
    return Ending(job, Path(project.env["HOME"], ".muster", "jobs", job))


@mostly_mpirun
def test_a_second_stop_leaves_the_jobs_folder_and_its_end_alone(project: Project, launcher: str) -> None:
    job = stubborn(project, "--launcher", launcher)
    job.interrupt("started-0")
    time.sleep(2 * SAME_SECONDS)  # else both signals are one
    job.interrupt("ending")
    result, _ = job.end()
    assert (result["exit_status"], result["first_failure"]["kind"]) == (143, "interrupted")


@mostly_mpirun
def test_a_stop_while_a_failed_job_is_ended_keeps_its_verdict(project: Project, launcher: str) -> None:
    job = stubborn(project, "--launcher", launcher, "--args=fail")
    job.wait_until_known()
    job.interrupt("ending")
    result, _ = job.end()
    assert (result["exit_status"], result["first_failure"]["rank"]) == (5, 1)


def test_who_stops_a_job_that_is_ended_wants_no_restart(project: Project) -> None:
    job = stubborn(project, "--args=fail", "--max-restarts", "3")
    job.wait_until_known()
    job.interrupt("started-0")  # mpirun may kill rank 0 before it writes `ending`
    result, verdict = job.end()
    assert (result["exit_status"], result["attempt"]) == (143, 0)
    # On a busy machine the stop may come when the job has just ended, and waits for its restart.
    assert re.search(
        r"(before that|about to start again after this): rank 1 on localhost: exit status 5", verdict
    )


SAVES = """
import os, signal, sys, time
def save(number, frame):
    print("saved at", signal.Signals(number).name, flush=True)
    sys.exit(75)
signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGUSR2, save)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("notice", [signal.SIGUSR1, pytest.param(signal.SIGUSR2, marks=pytest.mark.soak)])
def test_a_notice_reaches_every_rank_without_a_restart(project: Project, notice: signal.Signals) -> None:
    (project.path / "saves.py").write_text(SAVES)
    with project.start("--script", "saves.py", "--max-restarts", "3") as process:
        assert process.stdout is not None
        said: list[str] = []
        while sum("ready" in line for line in said) < 2:
            said.append(next(process.stdout))
        process.send_signal(notice)
        said += process.stdout.readlines()
    output = "".join(said)
    assert process.returncode == 75, output
    assert f"saved at {notice.name}" in output
    assert f"note: {notice.name} was passed on to every rank that handles it" in output
    assert "restart" not in output


# -- a detached launch on hosts of Slurm, with a Slurm whose only node is this machine --


def with_slurm(project: Project, folder: Path) -> Project:
    env = {name: value for name, value in project.env.items() if not name.startswith("SLURM_")}
    return dataclasses.replace(project, env=env | put_slurm_of_this_machine(folder))


def test_a_batch_job_is_followed_and_stopped_by_its_id(project: Project, tmp_path: Path) -> None:
    project = with_slurm(project, tmp_path / "slurm")
    words = ("--slurm=-N 1 -n 2", "--detach", "--python", sys.executable, "--script", "program.py")
    launched = project.muster("launch", *words, "--args=wait", "--env", "GREETING=hi")
    assert launched.returncode == 0, launched.stderr
    job = launched.stdout.split()[1]
    assert f"job {job} is Slurm's job 7" in launched.stdout
    greeted = '"GREETING": "hi"'
    wait_until(lambda: project.muster("logs", job).stdout.count(greeted) == 2, "lines of both ranks")
    stacks = project.muster("stacks", job)
    assert (stacks.returncode, "ranks 0-1:\n" in stacks.stdout) == (0, True), stacks
    (running,) = json.loads(project.muster("status", "--json").stdout)
    assert (running["state"], running["hosts"], running["detached"]) == ("running", ["n1"], True)
    stopped = project.muster("stop", job)
    assert stopped.returncode == 0, stopped.stderr
    assert f"{job} stopped by muster stop, by " in stopped.stdout
    wait_until_clean(job)
    result = json.loads((project.path / "runs" / job / "result.json").read_text())
    assert result["exit_status"] == 143
    assert not (project.path / "runs" / job / "batch").exists()


# -- a detached job that is asked to end: it saves, and its restart goes on from the step that was saved --


PROGRAM = """
import os, time
from pathlib import Path
from muster.train import Checkpoints, Job, Preemption, run

def train(job: Job) -> None:
    checkpoints = Checkpoints(job, job.out)
    resumed = checkpoints.load({"step": 0})
    step = first = resumed or 0
    with Preemption(job) as preemption:
        while resumed is None or step < first + 3:
            step += 1
            job.barrier()
            Path(job.out, f"pid-of-{job.rank}").write_text(str(os.getpid()))
            if preemption.asked():
                checkpoints.save(step, {"step": step})
                preemption.leave(f"saved step {step}")
            time.sleep(0.02)
    print(f"rank {job.rank} went from step {first} to {step}", flush=True)

run(train)
"""


@pytest.mark.soak
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_a_detached_job_saves_at_sigterm_and_its_restart_goes_on(project: Project, launcher: str) -> None:
    (project.path / "preempted.py").write_text(PROGRAM)
    job = project.detach("--launcher", launcher, "--script", "preempted.py", "--max-restarts", "1")
    folder = Path(project.env["HOME"], ".muster", "jobs", job)
    wait_until((folder / "out" / "pid-of-1").exists, "a step of rank 1", patience=300.0)
    process = wait_until((folder / "out" / "pid-of-1").read_text, "its process")
    os.kill(int(process), signal.SIGTERM)
    attached = project.muster("attach", job)
    assert attached.returncode == 0, attached.stdout + attached.stderr
    run = project.path / "runs" / job
    result = json.loads((run / "result.json").read_text())
    assert (result["exit_status"], result["attempt"]) == (0, 1)
    logs = "".join(path.read_text() for path in sorted((run / "logs").glob("rank-*")))
    (saved,) = {*re.findall(r"saved step (\d+); status 75, a restart goes on from there", logs)}
    assert f"went from step {saved} to {int(saved) + 3}" in logs
