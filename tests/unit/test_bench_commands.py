"""`muster bench` from its command line to its report, with a job that is not run."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.deploy.cli import dispatch as program
from muster.deploy.cli import inventory as inventories
from muster.deploy.cli.inventory import Inventory, of_file
from muster.deploy.cli.shared import HostOptions, SlurmOptions
from muster.deploy.core.errors import MusterError, UnfitError
from muster.deploy.core.plan.spec import LaunchSpec
from muster.deploy.features.bench import command as bench
from muster.deploy.features.bench import command_job as bench_job
from muster.deploy.features.bench.command_job import BenchmarkRun
from muster.deploy.features.check import command_bench as checked
from muster.deploy.features.leases.plan import lease_request
from muster.deploy.features.slurm.options import AllocationOptions
from tests.unit.plans import NODE
from tests.unit.test_bench_hosts import ABOUT
from tests.unit.test_bench_hosts import text as speeds_of
from tests.unit.test_bench_links import printed as links_of


class Launches:
    """Stands in for what runs a job: keeps the jobs, and answers what ranks would print."""

    def __init__(self, printed: Mapping[str, Mapping[int, str]], status: int = 0) -> None:
        self.jobs: list[LaunchSpec] = []
        self._printed, self._status = printed, status

    def __call__(self, job: LaunchSpec, *_: object, **__: object) -> BenchmarkRun:
        self.jobs.append(job)
        tool = (job.program.module or "").rpartition(".")[2]
        failure = SimpleNamespace(host="node2", headline="rank 1 on node2: boom") if self._status else None
        plan = SimpleNamespace(spec=job)
        result: Any = SimpleNamespace(exit_status=self._status, failure=failure, plan=plan)
        folder: Any = SimpleNamespace(path=Path("runs/JOB"))
        return BenchmarkRun(result, folder, tuple(host.name for host in job.hosts), {**self._printed[tool]})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "hosts.txt").write_text("node[1-3] slots=4\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stand_in(monkeypatch: pytest.MonkeyPatch, status: int = 0) -> Launches:
    launches = Launches(
        {"links": links_of(3), "sweep": {0: ABOUT}, "host_speed": {rank: speeds_of() for rank in range(3)}},
        status,
    )
    for module in (bench, checked):
        monkeypatch.setattr(module, "run_benchmark", launches)
    return launches


def run(line: str) -> int:
    return program.run(shlex.split(line))


def test_links_are_measured_by_one_rank_on_each_host_without_the_working_tree(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launches = stand_in(monkeypatch)
    assert run("bench links --launcher torchrun --backend gloo --short --html page.html") == 0
    (job,) = launches.jobs
    assert [(host.name, host.slots) for host in job.hosts] == [(f"node{n}", 1) for n in (1, 2, 3)]
    assert (job.launcher, job.backend) == ("torchrun", "gloo")
    assert job.program.module == "muster.deploy.features.bench.programs.links"
    assert job.program.args == bench_job.SHORT["links"]
    sent = {file.path for file in job.library.files}
    assert {"job/group.py", f"{job.program.module.replace('.', '/')}.py"} <= {
        path.removeprefix("train/") for path in sent
    }
    assert job.tree.files == ()
    assert "bandwidth, Gbit/s" in capsys.readouterr().out
    assert (place / "page.html").read_text().count("<table") == 2


def test_invalid_output_of_a_host_ends_the_benchmark_with_3(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launches = Launches({"links": {**links_of(3), 1: "garbage\n"}})
    monkeypatch.setattr(bench, "run_benchmark", launches)
    assert run("bench links") == 3
    assert "ERROR   node2: it measured 0 of its 2 links" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("links --include node1", "a link needs two hosts"),
        ("links --backend tcp --slurm='-N 3'", "--backend tcp: must be one of"),
        ("links --network 10.0.0.0/99", "--network 10.0.0.0/99: '10.0.0.0/99' does not appear"),
        ("collectives allreduce", "allreduce: must be one of all_reduce"),
        ("collectives --minbytes 8x", "--minbytes 8x"),
        ("collectives --datatype float32", "--datatype float32: must be one of"),
    ],
)
def test_a_mistake_ends_with_2_before_anything_runs(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    launches = stand_in(monkeypatch)
    assert run(f"bench {line}") == 2
    assert said in capsys.readouterr().err
    assert launches.jobs == []


def test_options_of_a_sweep_reach_the_program(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches({"sweep": {0: ABOUT}})
    monkeypatch.setattr(bench, "run_benchmark", launches)
    assert run("bench collectives reduce_scatter -e 1G --np 5 -d half") == 0
    (job,) = launches.jobs
    assert job.np == 5
    assert {"--operations=reduce_scatter", f"--maxbytes={1 << 30}", "--datatype=half"} <= {*job.program.args}


def test_the_end_of_the_job_comes_before_lacks(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches({"sweep": {0: "NCCL INFO cudaDriverVersion 12080\n"}}, status=3)
    monkeypatch.setattr(bench, "run_benchmark", launches)
    monkeypatch.setattr(bench_job, "verdict", lambda *_: "")
    assert run("bench collectives --json") == 3


@pytest.mark.parametrize("command", ["links", "collectives", "hosts"])
def test_hosts_may_be_those_of_slurm(place: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    @contextlib.contextmanager
    def allocated(options: SlurmOptions, *_: object) -> Iterator[Inventory]:
        assert options.slurm == "-N 3"
        yield dataclasses.replace(of_file(HostOptions(hosts="given")), allocation="7")

    (place / "hosts.txt").rename(place / "given")
    monkeypatch.setattr(inventories, "allocated", allocated)
    launches = stand_in(monkeypatch)
    assert run(f"bench {command} --slurm='-N 3'") == 0
    assert [job.of(AllocationOptions).allocation for job in launches.jobs] == ["7"]


def test_a_check_gets_what_is_slow_as_warnings(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {2: speeds_of(0.5), 0: speeds_of(), 1: speeds_of()}
    launches = Launches({"links": links_of(3), "host_speed": slow})
    monkeypatch.setattr(checked, "run_benchmark", launches)
    inventory = of_file(HostOptions())
    found = checked.measure(inventory, inventory.hosts, "mpirun", "", Path("runs"))
    assert {(finding.id, finding.host, finding.severity) for finding in found.findings} == {
        ("bench.slow-host", "node3", "warning")
    }
    assert "bandwidth, Gbit/s" in found.text
    assert len(found.as_json["links"]["links"]) == 6
    assert {*found.as_json} == {"links", "speeds"}


def test_a_benchmark_that_fails_is_a_warning_of_a_check(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, status=1)
    inventory = of_file(HostOptions())
    found = checked.measure(inventory, inventory.hosts, "mpirun", "", Path("runs"))
    assert [(finding.id, finding.host) for finding in found.findings] == [("bench.failed", "node2")] * 2
    assert "rank 1 on node2: boom (runs/JOB)" in found.findings[0].text


LOST = [("node1", "no login"), ("node3", "silent")]


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (MusterError("--runs runs: permission denied"), [("", "--runs runs: permission denied")]),
        (UnfitError(LOST), LOST),
    ],
    ids=["runs", "login"],
)
def test_a_benchmark_that_cannot_begin_is_a_warning_of_a_check(
    place: Path, monkeypatch: pytest.MonkeyPatch, error: MusterError, found: list[tuple[str, str]]
) -> None:
    def refuse(*_: object) -> BenchmarkRun:
        raise error

    monkeypatch.setattr(checked, "run_benchmark", refuse)
    inventory = of_file(HostOptions())
    result = checked.measure(inventory, inventory.hosts, "mpirun", "", Path("runs"))
    assert {finding.id for finding in result.findings} == {"bench.failed"}
    assert [(finding.host, finding.text) for finding in result.findings] == found


def test_a_single_host_has_no_links_to_check(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = stand_in(monkeypatch)
    inventory = of_file(HostOptions(include="node1"))
    checked.measure(inventory, inventory.hosts, "mpirun", "", Path("runs"))
    (job,) = launches.jobs
    assert job.program.module == "muster.deploy.features.bench.programs.host_speed"
    wanted = lease_request(job, 1, dataclasses.replace(NODE, devices=8))
    assert wanted is not None and wanted.gpus == 8, "its rank measures every GPU of the host"
