"""The record of how the hosts of a job are reached: what it holds, and what is refused."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.cli import hosts_record
from muster.deploy.cli.commands import MODULES, load
from muster.deploy.cli.dispatch import run
from muster.deploy.cli.hosts_record import HostsRecord
from muster.deploy.cli.job_lookup import locate
from muster.deploy.cli.run_files import FILES
from muster.deploy.cli.running_job import running
from muster.deploy.cli.shared import JobOptions
from muster.deploy.core.connect.opener import Access
from muster.deploy.core.connect.pipe import LostError, Pipe
from muster.deploy.core.errors import HostError, MusterError, UnfitError, UsageError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.hostfile import Host
from muster.deploy.core.job.fetch import fetch
from muster.deploy.core.job.find import LocalRuns, LocatedJob
from muster.deploy.core.wire.users import own_name
from muster.deploy.features.slurm.mark import write_mark
from tests.hosts_here import HostsHere
from tests.slurm import SRUN, put_programs
from tests.unit.test_job_states import RECORD, Liar, hold, make_run, only

JOB = RECORD["job"]
HOSTS = hostfile.parse("b slots=2 user=ml port=2222\nnode[1-3] slots=4 addr=10.0.0.[1-3]\na\n")


def keep(runs: Path, job: str = JOB, **changes: Any) -> HostsRecord:
    config = runs.parent / "ssh_config"
    config.touch(mode=0o600)
    record = HostsRecord(HOSTS, Access(str(config), "openssh", "python3.12", {"a": ".venv/bin/python"}), True)
    (runs / job).mkdir(parents=True)
    hosts_record.write(runs / job, record)
    if changes:
        written = json.loads((runs / job / "hosts.json").read_text())
        (runs / job / "hosts.json").write_text(json.dumps({**written, **changes}))
    return record


def test_what_a_launch_was_given_comes_back_as_it_was(tmp_path: Path) -> None:
    record = keep(tmp_path / "runs")
    keep(tmp_path / "runs", "20261121-120000-1111")
    assert hosts_record.find(tmp_path / "runs", JOB) == record
    assert hosts_record.find(tmp_path / "runs", JOB[-4:]) == record
    assert hosts_record.find(tmp_path / "runs", "x") is None
    assert (tmp_path / "runs" / JOB / "hosts.json").stat().st_mode & 0o777 == 0o600


def test_the_end_of_several_ids_names_them(tmp_path: Path) -> None:
    keep(tmp_path / "runs")
    keep(tmp_path / "runs", "20261121-130000-abcd")
    with pytest.raises(UsageError, match=f"several jobs end in abcd: {JOB}, 20261121-130000-abcd"):
        hosts_record.find(tmp_path / "runs", "abcd")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 2}, "version: expected 1 to 1, got 2"),
        ({"hosts": ["-oProxyCommand=x slots=2"]}, "a host name has letters"),
        ({"hosts": ["a slots=2", "b user=-x"]}, "hosts.json:2:3: user must be a login name"),
        ({"hosts": []}, "no hosts"),
        ({"hosts": "a"}, "hosts: expected a list"),
        ({"access": {"client": "telnet"}}, "access: client: expected one of"),
        ({"access": {"ssh_config": "relative"}}, "access: ssh_config: expected"),
        ({"detached": 1}, "detached: expected bool"),
    ],
    ids=str,
)
def test_an_odd_record_is_refused_with_its_file(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    keep(tmp_path / "runs", **changes)
    with pytest.raises(UsageError) as error:
        hosts_record.find(tmp_path / "runs", JOB)
    assert str(tmp_path / "runs" / JOB / "hosts.json") in str(error.value)
    assert said in str(error.value)
    assert "remove this file, and give the job's hosts with --hosts" in str(error.value)


def test_a_record_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    keep(tmp_path / "runs")
    (tmp_path / "runs" / JOB).chmod(0o777)
    with pytest.raises(UsageError, match="others may write to it, and it has hosts to log in to; do:"):
        hosts_record.find(tmp_path / "runs", JOB)


def test_a_record_names_no_python_of_this_machine(tmp_path: Path) -> None:
    """A cloned repository may bring it."""
    keep(tmp_path / "runs", access={"python": "./evil", "here": "./evil"})
    record = hosts_record.find(tmp_path / "runs", JOB)
    assert record and record.access == Access(python="./evil")


def test_an_ssh_configuration_that_others_may_write_or_that_is_gone_is_not_used(tmp_path: Path) -> None:
    keep(tmp_path / "runs")
    config = tmp_path / "ssh_config"
    config.chmod(0o666)
    with pytest.raises(UsageError, match="others may write to it, and SSH configuration can run commands"):
        hosts_record.find(tmp_path / "runs", JOB)
    config.unlink()
    with pytest.raises(UsageError, match=f"{config}: the SSH configuration of the launch is gone"):
        hosts_record.find(tmp_path / "runs", JOB)


@pytest.mark.parametrize(
    ("error", "kept"),
    [(UnfitError([("a", "no")]), False), (KeyboardInterrupt(), False), (LostError("it broke"), True)],
    ids=["refused", "interrupted", "perhaps started"],
)
def test_only_a_job_that_may_run_keeps_its_record(tmp_path: Path, error: BaseException, kept: bool) -> None:
    record = HostsRecord(HOSTS, Access())
    with pytest.raises(type(error)), hosts_record.kept_if_taken(tmp_path / "runs", JOB, record):
        raise error
    assert (tmp_path / "runs").exists() is kept
    assert (hosts_record.newest_elsewhere(tmp_path / "runs") == record) is kept


def test_an_id_of_the_future_is_not_the_newest(tmp_path: Path) -> None:
    record = keep(tmp_path / "runs")
    (tmp_path / "runs" / "99990101-000000-0000").mkdir()
    (tmp_path / "runs" / "99990101-000000-0000" / "hosts.json").write_text("{}")
    assert hosts_record.newest_elsewhere(tmp_path / "runs") == record


@pytest.mark.parametrize(
    ("hosts", "placed", "planned"),
    [
        (("b", "node1", "a"), (2, 4, 1), True),
        (("node2", "a"), (3, 1), True),
        (("node1", "b"), (4, 2), True),  # b was lost and came back
        (("b", "node1"), (6, 0), False),
        (("b", "b"), (1, 1), False),
    ],
)
def test_the_head_of_a_detached_job_claims_no_rank_that_is_elsewhere(
    tmp_path: Path, hosts: tuple[str, ...], placed: tuple[int, ...], planned: bool
) -> None:
    make_run(tmp_path, hosts=hosts, placed=placed, ranks=sum(placed))
    with contextlib.nullcontext() if planned else pytest.raises(MusterError, match="cannot have placed them"):
        HostsRecord(HOSTS, Access()).require_planned(only(tmp_path).state)


def test_what_comes_from_the_head_joins_the_record_and_never_replaces_it(tmp_path: Path) -> None:
    record, runs = keep(tmp_path / "runs"), tmp_path / "runs"
    there = make_run(tmp_path / "there")
    (there / "hosts.json").write_text("a lie")
    (runs / JOB / "files").mkdir()  # muster get JOB, before the run came here
    (runs / JOB / "files" / "last.pt").touch()
    state = only(tmp_path / "there").state
    with pytest.raises(MusterError):
        fetch(LocatedJob(state, Liar({"files": {"files": [["verdict.txt", 10]]}, "read": {}})), runs, FILES)
    assert hosts_record.newest_elsewhere(runs) == record
    folder = fetch(LocatedJob(state, LocalRuns(tmp_path / "there")), runs, FILES)
    assert (folder / "job.json").exists()
    assert (folder / "files" / "last.pt").exists()
    assert hosts_record.find(runs, JOB) == record
    assert hosts_record.newest_elsewhere(runs) is None
    assert [path.name for path in runs.iterdir()] == [JOB]


# -- the job that a command looks into, where a host of it cannot be reached --


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """node1, which cannot be reached, and node2, which has no job."""
    here = HostsHere(tmp_path / "homes", 2)

    def open_pipe(host: Host) -> Pipe:
        if host.name == "node1":
            raise HostError("ssh.unreachable", "no route to it")
        return here.open(host)

    monkeypatch.setattr(Access, "open", lambda _, host: open_pipe(host))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.txt").write_text("node[1-2]\n")


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize("job", ["", RECORD["job"]], ids=["newest", "named"])
def test_a_host_that_cannot_be_reached_may_have_the_job_and_is_named(job: str) -> None:
    with pytest.raises(UnfitError) as error, running(JobOptions(job=job)):
        pass
    assert error.value.reasons == (("node1", "no route to it"),)


@pytest.mark.usefixtures("hosts")
def test_a_job_that_another_place_knows_is_looked_into_without_that_host(tmp_path: Path) -> None:
    make_run(tmp_path / "runs")
    with running(JobOptions(job=RECORD["job"])) as found:
        assert (found.state.job, [*found.channels]) == (RECORD["job"], ["node2"])
        assert found.silent == {"node1": "no route to it"}


@pytest.mark.usefixtures("hosts")
def test_a_detached_job_whose_first_host_is_down_is_known_and_its_host_is_named(tmp_path: Path) -> None:
    job = RECORD["job"]
    (tmp_path / "runs" / job).mkdir(parents=True, mode=0o700)
    hosts = hostfile.parse("node1\nnode2\n")
    hosts_record.write(tmp_path / "runs" / job, HostsRecord(hosts, Access(), detached=True))
    with pytest.raises(UnfitError) as error, locate(job, JobOptions(job=job)):
        pass
    assert str(error.value) == (
        f"node1: the driver of {job} is there, and it does not answer (no route to it); "
        "if it is down, the job has ended on every host"
    )


@pytest.mark.usefixtures("hosts")
def test_a_job_here_is_newest_and_asks_no_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "runs", user=own_name(), hosts=["node2"], placed=[4])
    hosts_record.write(run, HostsRecord(hostfile.parse("node2 slots=4\n"), Access()))
    held = hold(run)
    with running(JobOptions()) as found:
        assert found.state.job == RECORD["job"]
    os.close(held)
    assert capsys.readouterr().err == f"job {RECORD['job']}\n"


MORE = {"eval": ["step"], "forward": ["6006"], "logs": ["-f"], "top": ["--once"]}
OF_A_JOB = ["get", *(name for name in MODULES if "--job" in load(name).flags)]


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize("name", OF_A_JOB)
def test_every_command_takes_an_end(tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    job = RECORD["job"]
    folder = make_run(tmp_path / "runs", hosts=["node2"], placed=[4])
    hosts_record.write(folder, HostsRecord(hostfile.parse("node2 slots=4\n"), Access()))
    run([name, job[-4:], *MORE.get(name, [])])
    said = capfd.readouterr()
    assert job in said.out + said.err
    assert "no job" not in said.err


@pytest.mark.usefixtures("hosts")
def test_status_names_silent_hosts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "runs", user=own_name(), hosts=["node2"], placed=[4])
    for is_held, status in ((False, 3), (True, 0)):
        held = hold(folder) if is_held else None
        assert run(["status"]) == status
        said = capfd.readouterr()
        assert RECORD["job"] in said.out
        assert said.err == "node1: no route to it\n"
        if held is not None:
            os.close(held)


def test_a_job_of_slurm_is_read_by_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_programs(tmp_path / "bin", srun=f'echo "$*" > {tmp_path}/srun{SRUN}')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "runs", user=own_name(), hosts=["n1"], placed=[4])
    write_mark(run, "17", (), python=sys.executable)
    held = hold(run)
    with running(JobOptions()) as found:
        assert ([*found.channels], found.silent) == (["n1"], {})
    words = (tmp_path / "srun").read_text()
    assert "--jobid=17 --nodelist=n1 " in words
    assert "--gres=none" in words
    os.close(held)
    said = f"no rank of {RECORD['job']} runs on n1; the job is lost"
    with pytest.raises(MusterError, match=said), running(JobOptions(job=RECORD["job"])):
        pass
