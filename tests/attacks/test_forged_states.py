"""A host decides nothing about a job whose record is elsewhere."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.cli import hosts_record
from muster.deploy.cli.dispatch import main
from muster.deploy.cli.hosts_record import HostsRecord
from muster.deploy.core.connect.opener import Access
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.wire.job_folders import JobFolders, identity, start_of
from muster.deploy.features.slurm.mark import mark_of, write_mark
from tests.hosts_here import HostsHere
from tests.unit.test_job_states import RECORD, hold, make_run

JOB = RECORD["job"]
DONE = {"attempt": 0, "ended": 2.0, "exit_status": 0, "first_failure": None}
FORGED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the head is another": ({}, DONE),
    "a later attempt": ({"attempt": 99}, {**DONE, "attempt": 99}),
    "its own head": ({"hosts": ["node2"], "placed": [4]}, DONE),
    "its own head, by name": ({"head": "node2", "attempt": 99}, {**DONE, "attempt": 99}),
}


class Cluster:
    """Two hosts that this machine reaches; node1 runs the job, and node2 has a forged record of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.here = HostsHere(folder / "homes", 2)
        self.held: list[int] = []

    def runs_of(self, host: str) -> Path:
        return self.folder / "homes" / host / ".muster" / "jobs"

    def run(self, runs: Path) -> Path:
        """A run of the job that goes on."""
        run = make_run(runs) if runs.name == "runs" else _as_run(make_run(runs))
        self.held.append(hold(run))
        return run

    def forge(self, name: str) -> None:
        record, result = FORGED[name]
        run = _as_run(make_run(self.runs_of("node2"), **record))
        (run / "result.json").write_text(json.dumps(result))


def _as_run(folder: Path) -> Path:
    """On a host, the run is in `run` of the job's folder."""
    moved = folder.with_name("moved")
    folder.rename(moved)
    folder.mkdir()
    return moved.rename(folder / "run")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    monkeypatch.setattr(Access, "open", lambda _, host: made.here.open(host))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.txt").write_text("node[1-2] slots=2\n")
    yield made
    for descriptor in made.held:
        os.close(descriptor)


def muster(*words: str) -> int:
    try:
        main([*words])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def detached(folder: Path) -> None:
    (folder / "runs" / JOB).mkdir(parents=True, mode=0o700)
    hosts = hostfile.parse("node[1-2] slots=2")
    hosts_record.write(folder / "runs" / JOB, HostsRecord(hosts, Access(), detached=True))


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize("where", ["here", "detached from here"])
def test_own_record_wins(cluster: Cluster, capsys: pytest.CaptureFixture[str], where: str, name: str) -> None:
    cluster.forge(name)
    if where == "here":
        cluster.run(cluster.folder / "runs")
    else:
        detached(cluster.folder)
        cluster.run(cluster.runs_of("node1"))
    assert muster("status", "--json") == 0
    listed = capsys.readouterr()
    assert [each["state"] for each in json.loads(listed.out)] == ["running"]
    assert muster("status", JOB) == 0
    assert "running" in capsys.readouterr().out


@pytest.mark.parametrize("name", FORGED)
def test_only_the_head_speaks_of_it(cluster: Cluster, capsys: pytest.CaptureFixture[str], name: str) -> None:
    cluster.forge(name)
    cluster.run(cluster.runs_of("node1"))
    for words in (["status", JOB], ["stop", JOB], ["attach", JOB], ["why", JOB], ["logs", JOB]):
        if "its own head" in name:  # nothing here shows which of them is right
            assert muster(*words) == 1
            said = capsys.readouterr().err
            assert re.search(
                f"{JOB}: its records contradict each other: node1 says running .*, node2 says done", said
            )
        elif words[0] in {"status", "stop"}:
            muster(*words)
            printed = capsys.readouterr()
            assert "is over" not in printed.out + printed.err


def test_a_host_cannot_invent_a_job_of_another(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.forge("the head is another")
    assert muster("status", "--json") == 0
    listed = capsys.readouterr()
    assert json.loads(listed.out) == []
    assert f"node2 has records of jobs whose heads have none, so they are left out: {JOB}" in listed.err
    assert muster("attach", JOB) == 2
    assert "DONE" not in capsys.readouterr().out


def test_hosts_that_share_a_home_agree(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.run(cluster.runs_of("node1"))
    cluster.here.shares["node2"] = "node1"
    assert muster("status", "--json") == 0
    assert capsys.readouterr().err == ""


def test_a_job_launched_on_a_host_is_listed(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    (cluster.folder / "hosts.txt").write_text("localhost\nnode2\n")
    _as_run(make_run(cluster.runs_of("node2"), hosts=["localhost"], placed=[4]))
    assert muster("status", "--json") == 0
    assert [each["job"] for each in json.loads(capsys.readouterr().out)] == [JOB]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root for a second user")
def test_a_run_of_another_user_has_no_process_of_ours_ended(tmp_path: Path) -> None:
    """In a folder such as /tmp/runs, anybody can make a run."""
    with subprocess.Popen(["sleep", "1000"]) as ours:
        driver = {**identity(), "pid": ours.pid, "start": start_of(ours.pid)}
        held = hold(run := make_run(tmp_path, driver=driver))
        for user, told in ((65534, False), (0, True)):
            os.chown(run / "lock.driver", user, user)
            stop = {"job": run.name, "by": "somebody"}
            assert JobFolders(tmp_path, "").do_end_driver(stop, b"")["told"] is told
            assert told or ours.poll() is None
        assert ours.wait(60.0) == -signal.SIGTERM
        os.close(held)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root for a second user")
def test_a_job_of_slurm_that_another_user_names_is_not_ours_to_end(tmp_path: Path) -> None:
    write_mark(tmp_path, "7", ("sbatch",))
    assert mark_of(tmp_path)
    os.chown(tmp_path / "slurm.json", 65534, 65534)
    assert mark_of(tmp_path) is None


@pytest.mark.parametrize("pid", [-1, 0, 1 << 22])
def test_a_record_that_names_no_process_ends_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pid: int
) -> None:
    """To kill(2), -1 and 0 are many processes."""
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda number, signal: killed.append(number))
    held = hold(run := make_run(tmp_path, driver={**identity(), "pid": pid, "start": None}))
    assert JobFolders(tmp_path, "").do_end_driver({"job": run.name, "by": "eve"}, b"")["told"] is False
    assert not killed
    os.close(held)
