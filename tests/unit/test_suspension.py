"""A driver that did not run while its hosts went on, and what follows is not their fault."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from muster.deploy.core.connect.pipe import LostError
from muster.deploy.core.connect.reports import Event, Lost
from muster.deploy.core.job import cause
from muster.deploy.core.job.result import Failure
from tests.unit.plans import make_plan
from tests.unit.test_execute import Hosts


class Clocks:
    """The driver's clocks; a machine that sleeps does not count on the monotonic one."""

    def __init__(self) -> None:
        self.now = self.monotonic = 1000.0

    def stand_still(self, seconds: float, *, machine: bool = False) -> None:
        self.now += seconds
        self.monotonic += 0.0 if machine else seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(cause, "now", lambda: clocks.now)
    monkeypatch.setattr(cause, "time", SimpleNamespace(monotonic=lambda: clocks.monotonic))
    return clocks


@pytest.fixture
def hosts() -> Any:
    return Hosts(make_plan("node[1-2] slots=2"))


def ended(at: float, kind: Any = "launcher") -> Failure:
    return Failure(kind, "mpirun's daemon ended with SIGTERM (15)", 143, host="node2", at=at)


@pytest.mark.parametrize(
    ("machine", "says"),
    [(True, "this machine was suspended for 21 s"), (False, "Muster's driver did not run for 21 s (Ctrl-Z?")],
)
def test_a_job_that_hosts_ended_is_not_their_fault(clocks: Clocks, machine: bool, says: str) -> None:
    watch = cause.Suspension("node1")
    clocks.stand_still(21.0, machine=machine)
    watch.look()
    for failure in (ended(1012.3), ended(1021.2, "host"), ended(1030.0, "host")):
        explained = watch.explain(failure)
        assert explained is not None
        assert (explained.kind, explained.host, explained.exit_status) == ("driver", None, 1)
        assert explained.reason.startswith(says)
        assert explained.reason.endswith("with --detach a job runs on without this machine")


def test_a_detached_driver_that_stood_still_gets_no_advice_for_a_terminal(clocks: Clocks) -> None:
    watch = cause.Suspension("node1", detached=True)
    clocks.stand_still(21.0)
    watch.look()
    explained = watch.explain(ended(1012.3))
    assert explained is not None
    assert explained.reason.startswith("Muster's driver on node1: Muster's driver did not run for 21 s")
    assert "Ctrl-Z" not in explained.reason
    assert "--detach" not in explained.reason


def test_what_failed_before_hosts_lost_patience_keeps_its_cause(clocks: Clocks) -> None:
    watch = cause.Suspension("node1")
    clocks.stand_still(21.0)
    watch.look()
    by_itself = Failure("rank", "exit status 3", 3, host="node2", rank=3, at=1015.0)
    for failure in (by_itself, ended(1003.0, "rank"), ended(1100.0, "rank"), ended(1015.0, "interrupted")):
        assert watch.explain(failure) is failure


def test_a_short_standstill_is_no_reason_for_hosts_to_end_a_job(clocks: Clocks) -> None:
    watch = cause.Suspension("node1")
    clocks.stand_still(9.0)
    watch.look()
    failure = ended(clocks.now)
    assert watch.explain(failure) is failure


def test_a_driver_that_stood_still(clocks: Clocks, hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.deploy.core.job.state.EARLIER_SECONDS", 0.0)
    hosts.start_all()
    get = hosts.events.get

    def stand_still_before_the_last(timeout: float | None = None) -> Any:
        if len(hosts.events) == 1:
            clocks.stand_still(20.0)
        return get(timeout)

    monkeypatch.setattr(hosts.events, "get", stand_still_before_the_last)
    monkeypatch.setattr("muster.deploy.core.job.report_handlers.now", lambda: clocks.now)
    hosts.tell("node2", "daemon-end", name="prted", code=-15, time=1015.0)
    result = hosts.run()
    assert result.failure is not None
    assert (result.failure.kind, result.exit_status) == ("driver", 1)
    assert "Muster's driver did not run for 20 s" in result.failure.headline


@pytest.mark.parametrize("broken", [("node1", "node2"), ("node1",)])
def test_a_jump_hosts_restart_blames_no_host(hosts: Hosts, broken: tuple[str, ...]) -> None:
    for name in broken:
        hosts.channels[name].lost = LostError("Connection reset by peer", host=name)
    hosts.events.put(Event("node1", Lost(LostError("Connection reset by peer", host="node1"))))
    result = hosts.run()
    assert result.failure is not None
    if len(broken) == 2:
        assert (result.failure.kind, result.failure.host, result.exit_status) == ("network", None, 1)
        assert result.failure.headline.startswith("the connections to all 2 hosts broke at about the same")
    else:
        assert (result.failure.kind, result.failure.host, result.exit_status) == ("host", "node1", 3)


def test_hosts_that_fall_silent_together_are_not_the_failure_of_a_launch(hosts: Hosts) -> None:
    for channel, silence in zip(hosts.channels.values(), (10.5, 9.0), strict=True):
        channel.silence = silence
    result = hosts.run()
    assert result.failure is not None
    assert (result.failure.kind, result.failure.host, result.exit_status) == ("network", None, 1)
    assert result.failure.headline == (
        "all 2 hosts have been silent for 10 s: this machine has lost its network, or what lies between it "
        "and them fails (VPN, switch, jump host); with --detach a job runs on without this machine"
    )
    assert all(("give up", {}) in channel.asked for channel in hosts.channels.values())
    assert not any("also lost" in note for note in result.notes)
