"""A job on its way to its head, and the driver that waits for it there."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from muster.deploy.connect.bootstrap import BOOTSTRAP
from muster.deploy.connect.transports.openssh import OpenSshPipe, command
from muster.deploy.hosts import hostfile
from muster.deploy.jobs import detached_main
from muster.deploy.jobs.detach import own_code
from muster.deploy.jobs.job import Job
from muster.deploy.plan.source_tree import Tree, TreeFile
from muster.deploy.plan.spec import LaunchSpec, Program


def make_job() -> Job:
    return Job(
        spec=LaunchSpec(job="j", program=Program(script="a b.py", args=("$x",)), env=(("A", "1\n2"),)),
        hosts=hostfile.parse("node[1-2] slots=2 user=ml"),
        tree=Tree(Path("/work/a b"), "x", (TreeFile("a", False, "00"), TreeFile("l", False, "", link="a"))),
        library=Tree(Path("/opt/muster"), ".", (TreeFile("train/main.py", False, "01"),), "muster"),
        start_timeout=60.0,
    )


def test_a_job_arrives_as_it_left() -> None:
    assert Job.of_json(make_job().as_json()) == make_job()


@pytest.mark.parametrize(
    ("python", "started"),
    [("", [None, ".venv/bin/python", "python3"]), ("python3.12", [None] + ["python3.12"] * 2)],
)
def test_the_driver_on_the_head_goes_on_with_the_pythons_of_the_job(
    monkeypatch: pytest.MonkeyPatch, python: str, started: list[str | None]
) -> None:
    """A relative path begins at a home folder, and the head's driver is in another."""
    job = replace(
        make_job(), python=python, pythons={"node2": ".venv/bin/python"}, hosts=hostfile.parse("node[1-3]")
    )
    monkeypatch.setattr(detached_main, "LocalPipe", lambda python: python)
    monkeypatch.setattr(detached_main, "OpenSshPipe", lambda host, python, *, head: python)
    ways: list[object] = [detached_main._opener(Job.of_json(job.as_json()))(host) for host in job.hosts]
    assert ways == started


def test_a_job_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one of"):
        Job.of_json({**make_job().as_json(), "spec": {**make_job().as_json()["spec"], "launcher": "sh"}})


def test_the_driver_on_the_head_needs_the_standard_library_alone(tmp_path: Path) -> None:
    for file, (name, *_) in zip(own_code().files, own_code().listing(), strict=True):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((own_code().root / file.path).read_bytes())
    starts = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import muster.deploy.jobs.detached_main"
    done = subprocess.run([sys.executable, "-ISc", starts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_ssh_is_asked_for_nothing_but_a_agent() -> None:
    (host,) = hostfile.parse("node1 user=ml port=2222")
    argv = command(host, "/opt/my python/bin/python3")
    assert argv[-5:-1] == ["-p", "2222", "--", "node1"]
    assert shlex.split(argv[-1]) == ["/opt/my python/bin/python3", "-c", BOOTSTRAP]
    assert {"BatchMode=yes", "StrictHostKeyChecking=yes"} < set(argv)


def test_the_reason_of_ssh_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho 'Host key verification failed.' >&2\nexit 255\n")
    ssh.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (host,) = hostfile.parse("node2")
    error = OpenSshPipe(host, "python3", head="node1").last_words()
    assert error.text == "node1 cannot log in there: Host key verification failed."
    assert "try ssh node2 on node1" in error.remedy
