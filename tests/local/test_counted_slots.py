"""`--slots cores` of a launch counts what a host has."""

from __future__ import annotations

import os

from tests.launching import Project


def test_a_launch_counts_the_cores_of_a_host(project: Project) -> None:
    (project.path / "hosts.txt").write_text("localhost slots=999\n")
    done = project.muster("launch", "--slots", "cores", "--dry-run", "--script", "program.py")
    cores = len(os.sched_getaffinity(0))
    assert done.stdout.splitlines()[0].partition(": ")[2].startswith(f"{cores} rank")
