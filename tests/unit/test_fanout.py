"""The same on many hosts: every result, every error, in the order of the hosts."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.cli import job_commands
from muster.deploy.core import waits
from muster.deploy.core.connect.cluster import Cluster
from muster.deploy.core.connect.fanout import on_every, one_of_each
from muster.deploy.core.connect.pipe import LostError
from muster.deploy.core.errors import HostError, MusterError, UnfitError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.job.find import LogLine
from muster.deploy.core.text.screen import Screen
from muster.deploy.features.clean.command import clean_hosts
from tests.waiting import wait_until

HOSTS = ["node3", "node1", "node2"]


def test_every_host_has_a_result_in_the_order_of_the_hosts() -> None:
    outcome = on_every(HOSTS, lambda host: host.upper())
    assert list(outcome.results.items()) == [("node3", "NODE3"), ("node1", "NODE1"), ("node2", "NODE2")]
    assert outcome.require_all() == outcome.results


def test_failed_hosts_are_named_by_reason_and_keep_no_other_from_its_result() -> None:
    def act(host: str) -> str:
        if host != "node1":
            raise HostError("x.y", "no room", "make room", host=host)
        return host

    outcome = on_every(HOSTS, act)
    assert outcome.results == {"node1": "node1"}
    with pytest.raises(UnfitError) as caught:
        outcome.require_all()
    assert str(caught.value).splitlines() == ["node[2-3]: no room; make room"]
    assert caught.value.reasons == (("node3", "no room; make room"), ("node2", "no room; make room"))


def test_an_error_of_this_machine_is_said_with_its_file() -> None:
    outcome = on_every(["node1"], lambda host: Path("/nowhere/at/all").read_bytes())
    assert str(outcome.errors["node1"]) == "node1: on this machine, not there: there is no /nowhere/at/all"


def test_hosts_are_at_work_at_the_same_time() -> None:
    together = threading.Barrier(8)
    hosts = [f"node{number}" for number in range(8)]
    assert len(on_every(hosts, lambda host: together.wait(60)).results) == 8


def test_no_host_at_all_is_no_error() -> None:
    assert on_every([], lambda host: host).require_all() == {}


def test_an_interrupt_is_told_before_the_others_are_waited_for() -> None:
    released = threading.Event()

    def act(host: str) -> None:
        if host == "node3":
            raise KeyboardInterrupt
        assert released.wait(60)

    with pytest.raises(KeyboardInterrupt):
        on_every(HOSTS, act, interrupted=released.set)
    assert released.is_set()


def test_an_error_has_its_host_beside_its_text() -> None:
    error = MusterError("no room", host="node1")
    assert (str(error), error.host, error.reason) == ("node1: no room", "node1", "no room")


def test_a_line_names_the_hosts_that_are_waited_for_and_no_failed_one() -> None:
    def act(host: str) -> None:
        if host == "node2":
            raise MusterError("no room")
        if host == "node1":
            wait_until(lambda: waits.line(0).startswith("waiting for 1 of 3 hosts: node1"), waits.line(0))

    assert not on_every(HOSTS, act).results.keys() - {"node1", "node3"}
    assert not waits.line(0).startswith("waiting")


def test_of_hosts_that_share_a_folder_the_first_is_asked() -> None:
    channels: Any = {name: name.upper() for name in ("node1", "node2", "node3", "node4")}
    folders = {"node1": "shared", "node2": "own", "node4": "shared"}
    chosen: Any = one_of_each(channels, folders)
    assert chosen == {"node1": "NODE1", "node2": "NODE2"}


# -- what is done on every host at once, and what is said where it could not be --


def test_where_no_host_can_be_reached_nothing_is_done() -> None:
    cluster = Cluster(hostfile.parse("node[1-2]"), lambda host: pytest.fail("no way there"))
    assert clean_hosts(cluster, 0.0, results=False).results == {}


def test_a_host_is_named_once() -> None:
    def silent(host: hostfile.Host) -> Any:
        raise LostError("no answer within 30 s", host=host.name)

    with pytest.raises(UnfitError) as caught, Cluster(hostfile.parse("node[1-2]"), silent):
        pass
    assert str(caught.value) == "node[1-2]: no answer within 30 s"


def test_what_a_driver_said_in_several_lines_is_shown_in_several_lines() -> None:
    stream = io.StringIO()
    job_commands._show(Screen(stream), LogLine(None, "", "driver.log", "one\x1b[2J\ntwo\n"))
    assert stream.getvalue() == "one␛[2J\ntwo\n"
