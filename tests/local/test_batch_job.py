"""A detached launch on hosts of Slurm, with a Slurm whose only node is this machine."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from tests.launching import Project, wait_until_clean
from tests.slurm import put_slurm_of_this_machine
from tests.waiting import wait_until


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
