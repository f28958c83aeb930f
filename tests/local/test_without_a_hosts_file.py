"""A launch in a folder without a hosts file runs on this machine, and other commands find its job."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
import venv
from pathlib import Path

from tests.launching import MUSTER, Project
from tests.waiting import read_until

NOTE = "note: no hosts.txt: running on this machine with"
MISSING = "program.txt: no such hosts file; did you mean program.py?\n"
PROGRAM = """
import time
step = 7
print("ready", flush=True)
time.sleep(3600)
"""


def muster(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(MUSTER), *arguments]
    return subprocess.run(
        command, cwd=project.path, env=project.env, capture_output=True, text=True, check=False
    )


def test_a_folder_with_only_a_program_is_enough(project: Project) -> None:
    (project.path / "hosts.txt").unlink()
    launched = project.launch("program.py")
    assert launched.status == 0, launched.output
    assert f"{NOTE} 2 ranks; 'muster init' writes a hosts file\n" in launched.output
    assert launched.said(1)["env"]["WORLD_SIZE"] == "2"
    assert f"{NOTE} 3 ranks;" in project.launch("--np", "3", "program.py").output
    assert muster(project, "check").stderr == f"{NOTE} 2 ranks; 'muster init' writes a hosts file\n"
    missing = muster(project, "launch", "--hosts", "program.txt", "program.py")
    assert (missing.returncode, missing.stderr) == (2, MISSING)


def test_commands_find_the_job_of_a_launch_without_a_hosts_file(project: Project) -> None:
    (project.path / "hosts.txt").unlink()
    (project.path / "waits.py").write_text(PROGRAM)
    with project.start("waits.py") as driver:
        found = re.search(r"job (\S+):", "".join(read_until(driver, "ready", 2)))
        assert found
        for command, expected in {
            "status": "running",
            "logs": "ready",
            "stacks": "waits.py:5",
            "why": "ranks 0-1 are in `",
            "eval step": "ranks 0-1: 7",
            "top --once": "localhost",
            f"stop {found[1]}": "stopped",
        }.items():
            done = muster(project, *command.split())
            assert (done.returncode, expected in done.stdout) == (0, True), (command, done)
        driver.communicate()
    cleaned = muster(project, "clean", "--older-than", "0")
    assert (cleaned.returncode, cleaned.stdout.startswith("localhost: 1 job removed")) == (0, True), cleaned
    assert muster(project, "env", "list").stdout.startswith("no environments")


def test_the_hosts_file_of_a_parent_folder_is_used(project: Project) -> None:
    (project.path / "hosts.txt").write_text("localhost slots=3\n")
    folder = project.path / "inner"
    folder.mkdir()
    (project.path / "program.py").rename(folder / "program.py")
    launched = Project(folder, project.env).launch("program.py")
    assert launched.status == 0, launched.output
    assert f"note: the hosts of {project.path}/hosts.txt\n" in launched.output
    assert "3 ranks on 1 host" in launched.output


def test_torchrun_starts_the_ranks_of_a_machine_without_open_mpi(project: Project, tmp_path: Path) -> None:
    (project.path / "hosts.txt").unlink()
    venv.create(tmp_path / "bare", symlinks=True)
    (packages,) = (tmp_path / "bare" / "lib").glob("python*/site-packages")
    (packages / "torch.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    bare = Project(project.path, {**project.env, "PATH": os.defpath})
    python = tmp_path / "bare" / "bin" / "python"
    launched = bare.launch("--python", str(python), "program.py")
    assert launched.status == 0, launched.output
    assert f"{NOTE} 2 ranks, by torchrun (no mpirun beside " in launched.output
    refused = bare.launch("--launcher", "mpirun", "--python", str(python), "program.py")
    assert (refused.status, "localhost: no mpirun beside" in refused.output) == (3, True), refused.output
