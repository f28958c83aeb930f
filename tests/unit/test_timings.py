"""Where the time of a start goes, and the way to hosts that is opened before anybody waits for it."""

from __future__ import annotations

import sys
import threading
from typing import cast
from unittest.mock import Mock

import pytest

from muster.deploy.core.connect.bootstrap import agent_source
from muster.deploy.core.connect.opener import connect_early
from muster.deploy.core.connect.pipe import Pipe
from muster.deploy.core.errors import MusterError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.hostfile import Host
from muster.deploy.core.timings import Timings
from muster.deploy.core.wire import clock
from tests.waiting import wait_until

NODES = hostfile.parse("node[1-3]")


def test_a_part_of_every_host_lasts_from_the_first_to_the_last() -> None:
    timings = Timings()
    with timings.part("tree"):
        pass
    for host in ("node2", "node1"):
        timings.note("connection", began=1.0 if host == "node1" else 2.0, host=host)
    tree, connection = timings.parts()
    assert (tree.name, tree.slowest) == ("tree", "")
    assert (connection.began, connection.slowest) == (1.0, "node1")
    assert tree.ended <= connection.ended


def test_a_clock_begins_with_the_process() -> None:
    assert Timings().now() > 0.01, "Python itself takes longer than that"


def test_a_recovery_begins_with_the_failure_and_its_parts_have_the_time_of_day() -> None:
    failed = clock.now() - 30.0
    timings = Timings(since=failed)
    assert 29.9 < timings.now() < 90.0
    timings.note_at("notice of the failure", failed, failed + 0.5)
    (part,) = timings.parts()
    assert part.began == pytest.approx(0.0, abs=0.05)
    assert part.ended == pytest.approx(0.5, abs=0.05)


def pipe() -> Pipe:
    return cast(Pipe, Mock(writer=Mock(written=0)))


def test_the_way_to_every_host_is_begun_before_anybody_asks() -> None:
    begun: list[str] = []

    def open_pipe(host: Host) -> Pipe:
        begun.append(host.name)
        return pipe()

    connect_early(NODES, open_pipe, Timings())
    wait_until(lambda: len(begun) == 3, "three hosts are begun with")
    assert sorted(begun) == ["node1", "node2", "node3"]


def test_a_host_is_opened_once_and_anew_when_it_is_asked_for_again() -> None:
    opened: list[Pipe] = []

    def open_pipe(host: Host) -> Pipe:
        opened.append(pipe())
        return opened[-1]

    take = connect_early(NODES[:1], open_pipe, Timings())
    assert take(NODES[0]) is opened[0]
    opened[0].writer.write.assert_called_once_with(agent_source())  # type: ignore[attr-defined]
    assert take(NODES[0]) is opened[1]
    assert len(opened) == 2


def test_an_error_is_raised_to_whoever_asks_for_the_host() -> None:
    def refuse(host: Host) -> Pipe:
        raise MusterError("refused", host=host.name)

    take = connect_early(NODES, refuse, Timings())
    for node in NODES:
        with pytest.raises(MusterError, match="refused"):
            take(node)


def test_a_host_that_does_not_answer_keeps_nobody_from_another() -> None:
    never = threading.Event()

    def open_pipe(host: Host) -> Pipe:
        if host.name == "node1":
            never.wait()
        return pipe()

    take = connect_early(NODES, open_pipe, Timings())
    assert take(NODES[1]) and take(NODES[2])
    never.set()


def test_threads_take_turns_as_ever_once_every_way_is_open() -> None:
    usual = 0.005  # Python's; a test before this may just now end its threads
    wait_until(lambda: sys.getswitchinterval() == usual, "threads of other tests that have ended")
    go = threading.Event()

    def open_pipe(host: Host) -> Pipe:
        go.wait(60)
        return pipe()

    connect_early(NODES, open_pipe, Timings())
    connect_early(NODES, open_pipe, Timings())
    assert sys.getswitchinterval() < usual
    go.set()
    wait_until(lambda: sys.getswitchinterval() == usual, "turns of the usual length")
