"""`muster launch --gate` around its measurements: what it drains, which hosts it uses, when it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.deploy.cli import gate as gate_module
from muster.deploy.cli.command import Exit
from muster.deploy.cli.gate import Gate
from muster.deploy.cli.inventory import Inventory
from muster.deploy.errors import UnfitError
from muster.deploy.hosts import drained, hostfile
from muster.deploy.launch.result import Failure
from muster.deploy.plan.launcher import place_ranks
from muster.deploy.plan.spec import LaunchSpec

LINES = "node[1-4] slots=2"
SLOW = {"node2": "matmul float32 3 GFLOP/s; the others have 40 GFLOP/s"}


class Measurements:
    """What each measurement finds, in their order: reasons by host, or the failure of its job."""

    def __init__(self, *found: dict[str, str] | Failure) -> None:
        self._found = list(found)
        self.measured: list[list[str]] = []

    def run(self, hosts: Sequence[hostfile.Host]) -> Any:
        self.measured.append([host.name for host in hosts])
        found = self._found.pop(0) if self._found else {}
        failure = found if isinstance(found, Failure) else None
        return SimpleNamespace(result=SimpleNamespace(failure=failure), found=found)


def passed(
    monkeypatch: pytest.MonkeyPatch, folder: Path, measurements: Measurements, **options: Any
) -> tuple[LaunchSpec, list[str]]:
    """The request after the gate, and the hosts that get ranks."""

    def require_done(ran: Any) -> None:
        if failure := ran.result.failure:
            raise Exit(code=failure.exit_status)

    (folder / "hosts.txt").write_text(LINES + "\n")
    monkeypatch.setattr(Gate, "_run", lambda gate, spec, hosts: measurements.run(hosts))
    monkeypatch.setattr(Gate, "_judged", lambda gate, ran: ran.found)
    monkeypatch.setattr(gate_module, "require_done", require_done)
    access: Any = object()
    unused: Any = None
    inventory = Inventory((), unused, access)
    spec = LaunchSpec(job="j", hosts=hostfile.parse(LINES), **options)
    gate = Gate(5, folder / "hosts.txt", folder / "runs", inventory)
    spec, placement = gate.passed(spec, place_ranks(spec.hosts, spec))
    return spec, [host.name for host in placement.hosts]


def test_hosts_that_pass_are_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measurements = Measurements()
    spec, used = passed(monkeypatch, tmp_path, measurements, np=4, spares=1, max_restarts=1, min_hosts=2)
    assert measurements.measured == [["node1", "node2", "node3"]]
    assert used == ["node1", "node2"]
    assert (spec.spares, spec.min_hosts, len(spec.hosts)) == (1, 2, 4)
    assert drained.load(tmp_path / "hosts.txt") == ()


def test_a_host_that_fails_once_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measurements = Measurements(SLOW, {"node1": "memory copy 1 GB/s; the others have 2 GB/s"})
    _, used = passed(monkeypatch, tmp_path, measurements, np=4)
    assert measurements.measured == [["node1", "node2"]] * 2
    assert used == ["node1", "node2"]
    assert drained.load(tmp_path / "hosts.txt") == ()


def test_a_host_that_fails_twice_is_drained_and_the_next_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measurements = Measurements(SLOW, SLOW)
    spec, used = passed(monkeypatch, tmp_path, measurements, np=4)
    assert measurements.measured == [["node1", "node2"], ["node1", "node2"], ["node1", "node3"]]
    assert used == ["node1", "node3"]
    assert [host.name for host in spec.hosts] == ["node1", "node3", "node4"]
    (entry,) = drained.load(tmp_path / "hosts.txt")
    assert (entry.host, entry.gpu, entry.why) == ("node2", None, f"--gate: {SLOW['node2']}")
    noted = capsys.readouterr().err
    assert f"note: --gate: node2: {SLOW['node2']}\n" in noted
    assert "note: node2 is drained; after a repair: muster hosts undrain node2\n" in noted


def test_a_spare_host_that_was_measured_is_not_measured_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measurements = Measurements(SLOW, SLOW)
    options = {"np": 6, "spares": 1, "max_restarts": 3, "min_hosts": 3}
    spec, used = passed(monkeypatch, tmp_path, measurements, **options)
    assert measurements.measured == [[f"node{number}" for number in (1, 2, 3, 4)]] * 2
    assert used == ["node1", "node3", "node4"]
    assert (spec.spares, spec.min_hosts) == (0, 3)


@pytest.mark.parametrize(
    ("options", "goes_on"),
    [
        ({"np": 8, "min_hosts": 4}, False),
        ({"min_hosts": 4}, False),
        ({"min_hosts": 3, "max_restarts": 1}, True),
        ({"np": 6, "min_hosts": 3}, True),
    ],
)
def test_a_job_that_lacks_hosts_does_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: dict[str, int], goes_on: bool
) -> None:
    if goes_on:
        _, used = passed(monkeypatch, tmp_path, Measurements(SLOW, SLOW), **options)
        assert used == ["node1", "node3", "node4"]
    else:
        with pytest.raises(UnfitError, match="node2: it fails --gate: matmul float32 3"):
            passed(monkeypatch, tmp_path, Measurements(SLOW, SLOW), **options)
    assert [entry.host for entry in drained.load(tmp_path / "hosts.txt")] == ["node2"]


BROKEN = Failure("rank", "exit status 1", 1, "node2", 2)


def test_a_host_on_which_the_measurement_fails_is_drained_if_the_others_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measurements = Measurements(BROKEN)
    _, used = passed(monkeypatch, tmp_path, measurements, np=4)
    assert measurements.measured == [["node1", "node2"], ["node1"], ["node1", "node3"]]
    assert used == ["node1", "node3"]
    assert [entry.host for entry in drained.load(tmp_path / "hosts.txt")] == ["node2"]


@pytest.mark.parametrize(
    "found",
    [
        (BROKEN, replace(BROKEN, host="node1", rank=0)),
        (Failure("interrupted", "SIGINT (2)", 1),),
        (Failure("stall", "no rank has printed anything for 80 s", 1),),
        (SLOW, BROKEN),
    ],
)
def test_a_measurement_that_fails_without_a_host_drains_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: Sequence[Any]
) -> None:
    with pytest.raises(Exit) as raised:
        passed(monkeypatch, tmp_path, Measurements(*found), np=4)
    assert raised.value.code == 1
    assert drained.load(tmp_path / "hosts.txt") == ()
