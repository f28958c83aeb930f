"""The job that a command looks into, where a host of it cannot be reached."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from muster.deploy.cli import hosts_record
from muster.deploy.cli.commands import MODULES, load
from muster.deploy.cli.dispatch import run
from muster.deploy.cli.hosts_record import HostsRecord
from muster.deploy.cli.job_lookup import locate
from muster.deploy.cli.running_job import running
from muster.deploy.cli.shared import JobOptions
from muster.deploy.core.connect.opener import Access
from muster.deploy.core.connect.pipe import Pipe
from muster.deploy.core.errors import HostError, MusterError, UnfitError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.hostfile import Host
from muster.deploy.core.wire.users import own_name
from muster.deploy.features.slurm.mark import write_mark
from tests.hosts_here import HostsHere
from tests.slurm import SRUN, put_programs
from tests.unit.test_job_states import RECORD, hold, make_run


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
def test_a_job_that_runs_here_is_the_newest_and_no_host_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
def test_every_command_for_a_job_takes_the_end_of_its_id(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    job = RECORD["job"]
    folder = make_run(tmp_path / "runs", hosts=["node2"], placed=[4])
    hosts_record.write(folder, HostsRecord(hostfile.parse("node2 slots=4\n"), Access()))
    run([name, job[-4:], *MORE.get(name, [])])
    said = capfd.readouterr()
    assert job in said.out + said.err
    assert "no job" not in said.err


@pytest.mark.usefixtures("hosts")
def test_status_names_silent_hosts_and_fails_only_if_they_may_have_your_newest_job(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(tmp_path / "runs", user=own_name(), hosts=["node2"], placed=[4])
    for is_held, status in ((False, 3), (True, 0)):
        held = hold(folder) if is_held else None
        assert run(["status"]) == status
        said = capfd.readouterr()
        assert RECORD["job"] in said.out
        assert said.err == "node1: no route to it\n"
        if held is not None:
            os.close(held)


def test_a_job_of_slurm_is_looked_into_by_steps_of_its_allocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
