"""A detached job that is asked to end: it saves, and its restart goes on from the step that was saved."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.launching import Project
from tests.waiting import wait_until

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
