"""Hosts that stay connected from one attempt of a job to the next."""

from __future__ import annotations

import threading

import pytest

from muster.deploy.core.connect import kept_connections as reserve_module
from muster.deploy.core.connect.cluster import Cluster
from muster.deploy.core.connect.inbox import Inbox
from muster.deploy.core.connect.kept_connections import KeptConnections
from muster.deploy.core.connect.pipe import Pipe
from muster.deploy.core.connect.reports import CommandEnd, Event, Lost, RankOutput, StopAsked
from muster.deploy.core.connect.transports.process import LocalPipe
from muster.deploy.core.errors import HostError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.hostfile import Host
from muster.deploy.core.wire.clock import now
from tests.waiting import wait_until

pytestmark = pytest.mark.slow  # several processes a test

HOSTS = hostfile.parse("node[1-3]")
STOP, OLD = Event("node1", StopAsked("eve")), Event("node1", CommandEnd(0, now()))


class Opener:
    """Starts an agent on this machine for each host, and notes it."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.pipes: dict[str, LocalPipe] = {}

    def __call__(self, host: Host) -> Pipe:
        self.opened.append(host.name)
        self.pipes[host.name] = pipe = LocalPipe(None)
        return pipe


@pytest.fixture
def opener() -> Opener:
    return Opener()


def test_hosts_that_are_well_are_not_connected_anew(opener: Opener) -> None:
    with Cluster(HOSTS, opener) as first:
        first.facts["node1"] = first.facts["node3"]  # as of a container
        kept = first.hand_over(["node1", "node2"])
    assert opener.pipes["node3"].reader.read(1) == b"", "a host that is not kept ends with its cluster"
    greeted: list[str] = []
    with Cluster(HOSTS, opener, kept=kept, greet=lambda channel: greeted.append(channel.host)) as second:
        assert sorted(opener.opened) == ["node1", "node2", "node3", "node3"]
        assert sorted(greeted) == ["node1", "node2", "node3"]
        assert [*second.channels] == ["node1", "node2", "node3"]
        assert second.survey().hosts["node1"] == first._asked["node1"]


def test_a_kept_host_whose_connection_is_gone_is_connected_anew(opener: Opener) -> None:
    with Cluster(HOSTS, opener) as first:
        kept = first.hand_over(["node1", "node2"])
        lost = first.channels["node1"]
        opener.pipes["node1"].close()
        wait_until(lambda: lost.ended, "the end of the connection")
    with Cluster(HOSTS, opener, kept=kept) as second:
        assert opener.opened.count("node1") == 2
        second.survey()
        second.drop_reports()
        assert second.hear(0.0) is None, "the old connection is not the new one"


def test_the_loss_of_a_kept_host_is_reported(opener: Opener) -> None:
    with Cluster(HOSTS, opener) as first:
        kept = first.hand_over(["node1", "node2", "node3"])
    with Cluster(HOSTS, opener, kept=kept) as second:
        opener.pipes["node2"].close()
        wait_until(lambda: second.channels["node2"].ended, "the end of the connection")
        second.drop_reports()
        event = second.hear(5.0)
        assert event
        assert (event.host, type(event.report)) == ("node2", Lost)


def test_hosts_that_nobody_takes_over_are_closed(opener: Opener) -> None:
    with Cluster(HOSTS, opener) as first:
        kept = first.hand_over(["node1", "node2", "node3"])
    with Cluster(HOSTS[:2], opener, kept=kept) as second:
        kept.close()
        assert opener.pipes["node3"].reader.read(1) == b""
        second.drop_reports()
        assert second.hear(0.1) is None, "its end is no report about the job"
        second.survey()


def test_of_what_nobody_has_read_only_a_request_to_stop_is_passed_on(opener: Opener) -> None:
    with Cluster(HOSTS[:1], opener) as first:
        for event in (OLD, STOP):
            first.events.put(event)
        kept = first.hand_over(["node1"])
    kept.events.put(OLD)  # it was on its way
    with Cluster(HOSTS[:1], opener, kept=kept) as second:
        second.drop_reports()
        assert second.hear(0.0) == STOP
        assert second.hear(0.0) is None


def test_a_closed_queue_lets_no_host_wait() -> None:
    inbox = Inbox()
    full = Event("node1", RankOutput(0, "out", "x"), 1 << 30)
    inbox.put(full)
    late = threading.Thread(target=inbox.put, args=(full,), daemon=True)
    late.start()
    assert inbox.close() == [full]
    late.join(5.0)
    assert not late.is_alive()
    assert len(inbox) == 1


def test_a_queue_that_forgets_has_room_again() -> None:
    inbox = Inbox()
    inbox.put(Event("node1", RankOutput(0, "out", "x"), 1 << 30))
    inbox.put(STOP, wait=False)
    inbox.forget(but=(StopAsked,))
    inbox.put(STOP)
    assert [inbox.get(0.0), inbox.get(0.0), len(inbox)] == [STOP, STOP, 0]


def test_the_loss_of_a_spare_host_does_not_concern_the_attempt_that_runs(opener: Opener) -> None:
    with Cluster(HOSTS, opener) as first:
        spares = first.detach_spares(["node2", "node3"])
        assert [*first.channels] == [host.name for host in first.hosts] == ["node1"]
        opener.pipes["node3"].close()
        lost: dict[str, str] = {}
        wait_until(lambda: lost.update(spares.lost()) or bool(lost), "the loss of the spare host")
        assert [*lost] == ["node3"]
        assert first.hear(0.0) is None
        kept = first.hand_over(["node1"])
    with Cluster(HOSTS[:2], opener, kept=kept) as second:
        assert sorted(opener.opened) == ["node1", "node2", "node3"], "the spare host is connected already"
        assert second.survey().hosts["node2"] == first._asked["node2"]


def test_a_spare_host_that_is_not_taken_over_is_closed(opener: Opener) -> None:
    with Cluster(HOSTS[:2], opener) as first:
        first.detach_spares(["node2"]).close()
        assert opener.pipes["node2"].reader.read(1) == b""


def test_a_lost_host_is_sought_until_it_answers(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserve_module, "PAUSES", (0.0,))
    refusals = [HostError("ssh.refused", "refused"), HostError("ssh.unreachable", "no route")]

    def open_pipe(host: Host) -> Pipe:
        if refusals:
            raise refusals.pop()
        return opener(host)

    spares = KeptConnections()
    spares.seek(HOSTS[2], open_pipe)
    wait_until(lambda: spares.arrived() == ["node3"], "the host")
    assert (opener.opened, refusals) == (["node3"], [])
    with Cluster(HOSTS[2:], opener, kept=spares) as cluster:
        assert opener.opened == ["node3"], "it is connected already"
        cluster.survey()


def test_a_host_is_not_sought_after_the_attempt(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserve_module, "PAUSES", (60.0,))
    before, spares = threading.active_count(), KeptConnections()
    spares.seek(HOSTS[2], opener)
    spares.close()
    wait_until(lambda: threading.active_count() <= before, "the end of its thread")
    assert opener.opened == []
