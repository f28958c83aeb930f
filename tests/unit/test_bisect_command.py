"""`muster check --bisect` around the search: which failures count against hosts, and what ends it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.deploy.cli import bisect
from muster.deploy.cli.command import Exit
from muster.deploy.errors import MusterError, UnfitError, UsageError
from muster.deploy.hosts import hostfile
from muster.deploy.launch.result import Failure

HOSTS = hostfile.parse("node[1-4]")
HANGS = Failure("stall", "no rank has printed anything for 20 s", 3)


def found(monkeypatch: pytest.MonkeyPatch, end: Any, hosts: Any = HOSTS) -> list[tuple[str, str]]:
    """The findings, if every all_reduce with node3 ends so, and every other one works."""

    def run(names: list[str], *_: object) -> Any:
        failure = end if "node3" in names else None
        if isinstance(failure, MusterError):
            raise failure
        return SimpleNamespace(result=SimpleNamespace(failure=failure))

    def require_done(ran: Any) -> None:
        raise Exit(code=ran.result.failure.exit_status)

    monkeypatch.setattr(bisect, "spec_of", lambda inventory, chosen, *_: [host.name for host in chosen])
    monkeypatch.setattr(bisect, "replace", lambda spec, **_: spec)
    monkeypatch.setattr(bisect, "run_benchmark", run)
    monkeypatch.setattr(bisect, "require_done", require_done)
    inventory: Any = None
    return [(each.id, each.host) for each in bisect.bisected(inventory, hosts, "mpirun", "", Path("runs"))]


@pytest.mark.parametrize("end", [HANGS, UnfitError([("node3", "reaches node1 at none of 10.0.0.1")])])
def test_a_failed_job_and_an_unfit_host_count(monkeypatch: pytest.MonkeyPatch, end: Any) -> None:
    assert found(monkeypatch, end) == [("bisect.host", "node3")]


@pytest.mark.parametrize("kind", ["interrupted", "stopped", "driver", "port", "allocation"])
def test_what_says_nothing_about_hosts_ends_the_search(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    with pytest.raises(Exit) as raised:
        found(monkeypatch, Failure(kind, "SIGINT (2)", 130))
    assert raised.value.code == 130


def test_an_error_of_this_machine_accuses_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="runs"):
        found(monkeypatch, UsageError("runs: no permission to write"))


def test_one_host_is_not_reported_as_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert found(monkeypatch, HANGS, HOSTS[:1]) == []
    assert "--bisect tried nothing, because it needs two hosts that are fit" in capsys.readouterr().err
