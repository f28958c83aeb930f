"""What an agent measures on its host, with the real /proc, a false nvidia-smi, and folders of the test."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.agent.facts import distribution_version, mpirun_version
from muster.deploy.core.connect.bootstrap import BOOTSTRAP
from muster.deploy.core.decode import from_json
from muster.deploy.features.check import on_host as health
from muster.deploy.features.check.messages import HostHealth


def test_everything_of_this_host_is_what_the_driver_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    known = from_json(HostHealth, json.loads(json.dumps(health.health())))
    assert [folder.path for folder in known.folders] == [str(Path.home() / ".muster"), tempfile.gettempdir()]
    assert known.nofile > 0
    assert known.kernel == Path("/proc/sys/kernel/osrelease").read_text().strip()
    assert known.numpy == importlib.metadata.version("numpy")
    assert "NCCL_DEBUG=INFO" in known.variables.split()
    assert known.shm_free is None or known.shm_free > 0


def test_a_folder_that_is_not_there_yet_is_tried_where_it_would_be(tmp_path: Path) -> None:
    frame = health.examine_folder(tmp_path / "home" / ".muster")
    assert (frame["error"], frame["free"] > 0) == (None, True)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_says_why() -> None:
    error = health.examine_folder(Path("/proc/self"))["error"]  # not even by root
    assert error in {"No such file or directory", "Permission denied", "Operation not permitted"}


def test_a_folder_in_place_of_a_file_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert health.examine_folder(tmp_path / "file")["error"] == "Not a directory"


def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    (tmp_path / ".muster").symlink_to("/nowhere/at/all")
    assert health.examine_folder(tmp_path / ".muster")["error"] == "No such file or directory"


# -- the stack --


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("cuda: Optional[str] = '12.4'\n", "12.4"),
        ("cuda = '12.1'\n", "12.1"),
        ("cuda: str = None\n", None),
        ("", None),
    ],
)
def test_the_cuda_of_torch_is_read_without_importing_torch(
    text: str, version: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "torch" / "version.py").write_text(f"__version__ = '2.6.0'\n{text}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert health.torch_cuda() == version


# -- older jobs --


def of_job(name: str) -> list[dict[str, Any]]:
    return [job for job in health.job_processes() if job["job"] == name]


def test_processes_of_an_older_job_are_told_from_a_running_one(tmp_path: Path) -> None:
    agent = socket.socket(socket.AF_UNIX)
    agent.bind(str(tmp_path / "agent"))
    name = f"test-{os.getpid()}"
    env = {**os.environ, "MUSTER_JOB": name, "MUSTER_AGENT": str(tmp_path)}
    # It speaks first: while it is being loaded, a process has no environment to be read yet.
    command = ["sh", "-c", "echo here; read -r never"]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout and process.stdout.readline() == b"here\n"
            known = {"job": name, "stopped": None, "pids": [process.pid]}
            assert of_job(name) == [{**known, "kept": False}]
            agent.listen()
            assert of_job(name) == [{**known, "kept": True}]
        finally:
            process.kill()
            agent.close()
    assert of_job(name) == []


LISTEN = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("here", flush=True)
input()
"""


def test_an_agent_that_is_stopped_is_told_from_one_that_runs(tmp_path: Path) -> None:
    name = f"test-{os.getpid()}"
    env = {**os.environ, "MUSTER_JOB": name, "MUSTER_AGENT": str(tmp_path)}
    command = [sys.executable, "-c", LISTEN, str(tmp_path / "agent")]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout and process.stdout.readline() == b"here\n"
            assert [job["stopped"] for job in of_job(name)] == [None]
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            assert [job["stopped"] for job in of_job(name)] == [process.pid]
        finally:
            process.kill()


def test_a_stopped_agent_is_found_when_no_rank_is_left(tmp_path: Path) -> None:
    job = tmp_path / ".muster" / "jobs" / "20261119-080000-beef"
    job.mkdir(parents=True)
    program = BOOTSTRAP.partition(";")[0] + "; import sys; file = open(sys.argv[1], 'w'); print(); input()"
    command = [sys.executable, "-uc", program, str(job / "lock.node1")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout and process.stdout.readline() == b"\n"
            assert of_job(job.name) == []
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            assert of_job(job.name) == [{"job": job.name, "kept": True, "stopped": process.pid, "pids": []}]
        finally:
            process.kill()


def test_one_machine_has_one_name_for_all_logins_and_a_network_of_its_own_another() -> None:
    other = "from muster.deploy.features.check.on_host import machine; print(machine())"
    apart = ["unshare", "--map-root-user", "--net"]
    named = [
        subprocess.run([*before, sys.executable, "-c", other], capture_output=True, text=True, check=False)
        for before in ([], apart)
    ]
    assert named[0].stdout == f"{health.machine()}\n" != "\n"
    if named[1].returncode == 0:  # user namespaces are allowed here
        assert named[1].stdout != named[0].stdout


@pytest.mark.parametrize(
    ("does", "version", "failed"),
    [
        ("echo 'mpirun (Open MPI) 5.0.7'", "5.0.7", None),
        ("echo 'Intel(R) MPI Library'", None, None),
        ("echo 'clone3: Operation not permitted'; exit 1", None, "it ended with 1: clone3: Operation not"),
        ("exit 3", None, "it ended with 3: no message"),
    ],
)
def test_a_failing_own_mpirun(tmp_path: Path, does: str, version: str | None, failed: str | None) -> None:
    (tmp_path / "mpirun").write_text(f"#!/bin/sh\n{does}\n")
    (tmp_path / "mpirun").chmod(0o755)
    found, error = mpirun_version(str(tmp_path / "mpirun"))
    assert found == version
    assert (error or "").startswith(failed or "") and (error is None) == (failed is None)
    assert "may not use" in (mpirun_version(str(tmp_path))[1] or "")


@pytest.mark.parametrize(
    ("path", "on_path"),
    [
        ("Some_Thing-1.2.dist-info/METADATA", ""),
        ("some_thing-1.2-py3.9.egg-info/PKG-INFO", ""),
        ("some_thing-1.2.egg-info", ""),
        ("some_thing.egg-info/PKG-INFO", ""),
        ("some_thing-1.2-py3.9-linux-x86_64.egg/EGG-INFO/PKG-INFO", "some_thing-1.2-py3.9-linux-x86_64.egg"),
    ],
)
def test_a_distribution_is_found_as_pythons_library_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, on_path: str
) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text("Metadata-Version: 2.1\nName: some-thing\nVersion: 1.2\n")
    (tmp_path / "some_thing_else-3.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / on_path))
    assert distribution_version("some-thing") == importlib.metadata.version("some-thing") == "1.2"
    assert distribution_version("some") is None
