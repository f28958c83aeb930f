"""Launches with the defaults of a project, as `muster` and as `fab`, also from a folder below it."""

from __future__ import annotations

import subprocess

from tests.launching import FAB, MUSTER, Project

TEXT = """
hosts = "cluster.txt"
runs = "results"
start-timeout = 300

[profiles.greet]
launcher = "torchrun"
np = 1
script = "program.py"
args = "by profile"
env = ["GREETING=hello"]
"""


def test_a_profile_is_launched_and_its_job_is_found(project: Project) -> None:
    (project.path / "hosts.txt").rename(project.path / "cluster.txt")
    (project.path / "muster.toml").write_text(TEXT)
    below = project.path / "below"
    below.mkdir()

    def end(*words: str) -> str:
        done = subprocess.run(
            words, cwd=below, env=project.env, capture_output=True, text=True, timeout=540, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    first = end(str(MUSTER), "launch", "--profile", "greet")
    assert '"argv": ["by", "profile"]' in first
    assert '"GREETING": "hello"' in first
    assert "1 rank on 1 host with torchrun" in first
    second = end(
        str(FAB), "launch", "--profile", "greet", "--launcher", "mpirun", "--np", "2", "--", "by hand"
    )
    assert all(f'[{rank} localhost] {{"argv": ["by hand"]' in second for rank in (0, 1))
    for program in (MUSTER, FAB):
        jobs = end(str(program), "status").splitlines()[1:]
        assert [job.split()[1] for job in jobs] == ["done", "done"]
    plan = sorted((project.path / "results").iterdir())[0] / "plan.txt"
    assert f"  --np 1: {project.path}/muster.toml:8, profile greet\n" in plan.read_text()
