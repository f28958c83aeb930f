"""Asking real agents on this machine, each as a host of its own; one that fails spoils nothing else."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.deploy.core.connect.bootstrap import GREETING
from muster.deploy.core.connect.channel import Channel
from muster.deploy.core.connect.cluster import Cluster
from muster.deploy.core.connect.inbox import Inbox
from muster.deploy.core.connect.pipe import LostError, Pipe
from muster.deploy.core.connect.requests import FACTS, LOAD, TIME, Request, Time
from muster.deploy.core.connect.transports.process import LocalPipe
from muster.deploy.core.errors import HostError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.hostfile import Host
from muster.deploy.core.hosts.rendezvous import MOST_PEERS, peers
from muster.deploy.core.wire.frames import Frame, read_frame, write_frame
from muster.deploy.features.check.command import ask_hosts
from muster.deploy.features.check.host_reports import HostReports
from muster.deploy.features.check.judge import judge
from muster.deploy.features.check.messages import HEALTH
from muster.deploy.features.leases.messages import Device
from tests.load import hold
from tests.unit.plans import NODE
from tests.unit.test_check import HEALTHY
from tests.waiting import PATIENCE


def examined(text: str, broken: dict[str, str] | None = None) -> HostReports:
    """Hosts that are this machine; those in `broken` have another Python."""

    def open_pipe(host: Host) -> Pipe:
        if host.name == "unknown":
            raise HostError("ssh.name-unknown", "the name unknown is not known", "correct the hosts file")
        return LocalPipe((broken or {}).get(host.name))

    cluster = Cluster(hostfile.parse(text), open_pipe)
    try:
        return ask_hosts(cluster)
    finally:
        cluster.close()


@pytest.mark.timed
def test_every_host_is_known_and_reaches_every_other_and_itself() -> None:
    one = examined("node[1-3] slots=1")
    assert one.errors == {}
    for host in one.hosts.values():
        assert set(host.reached) == {"node1", "node2", "node3"}
        assert all(reached.interfaces for reached in host.reached.values())
        assert abs(host.clock.ahead) <= host.clock.uncertainty + 0.001
        hold("uncertainty of a clock", host.clock.uncertainty, 0.05)


def test_the_quickest_of_several_answers_tells_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    ways = [(0.2, 0.4), (0.01, 0.01), (0.3, 0.0)]  # there and back

    def ask(request: Request[Time], **words: object) -> Time:
        nonlocal now
        there, back = ways.pop(0)
        now += there + back
        return Time(now - back + 5.0, 0.0)

    channel = Channel("node1", Simulated({}), Inbox())
    monkeypatch.setattr(channel, "ask", ask)
    monkeypatch.setattr(
        "muster.deploy.core.connect.channel.time", SimpleNamespace(time=lambda: now, monotonic=lambda: now)
    )
    ahead, uncertainty = channel.measure_clock()
    assert ahead == pytest.approx(5.0)
    assert uncertainty == pytest.approx(0.01)
    assert not ways, "one that is slow is asked no more than this"


def test_a_launch_has_the_clock_of_every_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Channel, "measure_clock", lambda channel, **which: (2.5, 0.001))
    with Cluster(hostfile.parse("node[1-2]"), lambda host: LocalPipe(None)) as cluster:
        cluster.survey()
        assert [channel.clock_offset for channel in cluster.channels.values()] == [-2.5, -2.5]


class Simulated:
    """A host as a thread, which thinks before it says what it is and how it is."""

    remote = True

    def __init__(self, other: Mapping[str, Frame], think: Callable[[], object] = lambda: None) -> None:
        self._other, self._think = other, think
        mine, theirs = socket.socketpair()
        self.reader, writer = mine.makefile("rb"), mine.makefile("wb")
        self.writer = cast(
            Any, SimpleNamespace(written=0, write=writer.write, flush=writer.flush, close=writer.close)
        )
        threading.Thread(target=self._serve, args=(theirs.makefile("rwb"),), daemon=True).start()

    def _serve(self, stream: Any) -> None:
        stream.readline()
        stream.write(GREETING)
        while received := read_frame(stream):
            request, _ = received
            if request["do"] in ("facts", "health"):
                self._think()
            do = request["do"]
            answer = self._other[do] if do in self._other else self._answer(request)
            write_frame(stream, {"reply": request["id"], **answer})

    def _answer(self, request: Frame) -> Frame:
        now = {"time": time.time(), "steady": time.monotonic()}
        match request["do"]:
            case "facts":
                return dataclasses.asdict(NODE) | now
            case "health":
                return dataclasses.asdict(HEALTHY)
            case "open_port":
                return {"port": 20123}
            case "reach":
                seen = {"interfaces": {"10.0.0.1": "eth0"}, "refused": {}}
                return {"reached": {target["host"]: seen for target in request["targets"]}}
        return now

    def last_words(self, printed: str = "") -> LostError:
        return LostError("ended")

    def close(self, *, patient: bool = True) -> None:
        self.reader.close()
        self.writer.close()


def simulated(text: str, think: Callable[[], object] = lambda: None, **answers: Frame) -> HostReports:
    """Hosts that are threads; those in `answers` say something else."""
    return ask_hosts(Cluster(hostfile.parse(text), lambda host: Simulated(answers.get(host.name, {}), think)))


@pytest.mark.timed
def test_64_hosts_think_at_the_same_time_and_cost_at_most_a_second() -> None:
    hosts = "node[01-64] slots=2"
    everyone = threading.Barrier(64)  # none goes on before all are asked: one after the other would hang
    began = time.monotonic()
    one = simulated(hosts, lambda: everyone.wait(PATIENCE))
    findings = judge(hostfile.parse(hosts), one, "mpirun")
    seconds = time.monotonic() - began
    assert (len(one.hosts), findings) == (64, ())
    assert len(one.hosts["node64"].reached) == 64
    hold("an examination of 64 hosts", seconds, 1.0)


def test_addresses_of_ranks_that_were_cut_short_are_tried_again_alone() -> None:
    own = {"10.0.0.1": "eth0", "10.1.0.1": "eth1"}
    asked: list[list[Frame]] = []

    class TwoNetworks(Simulated):
        """Each host has both; between node3 and node2 the ranks' one is dropped."""

        def __init__(self, host: str) -> None:
            super().__init__({}, lambda: None)
            self.host = host

        def _answer(self, request: Frame) -> Frame:
            if request["do"] == "facts":
                return {**super()._answer(request), "addresses": list(own), "interfaces": own}
            if request["do"] != "reach":
                return super()._answer(request)
            if self.host == "node3":
                asked.append(request["targets"])
            dropped = (
                {"interfaces": {"10.1.0.1": "eth1"}} if len(asked) < 2 else {"refused": {"10.0.0.1": "-"}}
            )
            return {
                "reached": {
                    target["host"]: dropped
                    if (self.host, target["host"]) == ("node3", "node2")
                    else {"interfaces": own}
                    for target in request["targets"]
                }
            }

    one = ask_hosts(Cluster(hostfile.parse("node[1-3]"), lambda host: TwoNetworks(host.name)))
    assert [(target["host"], target["addresses"]) for target in asked[1]] == [("node2", ["10.0.0.1"])]
    seen = one.hosts["node3"].reached["node2"]
    assert (seen.interfaces, seen.refused) == ({"10.1.0.1": "eth1"}, {"10.0.0.1": "-"})


@pytest.mark.parametrize("hosts", [1, 64, 65, 100, 257, 1000])
def test_many_hosts_try_some_of_each_other_and_each_is_tried_as_often(hosts: int) -> None:
    tried = [peers(number, hosts) for number in range(hosts)]
    assert all({0, number} <= set(those) for number, those in enumerate(tried))
    times = Counter(one for those in tried for one in those if one)
    assert len(times) == hosts - 1
    assert len(set(times.values())) <= 1
    assert max(map(len, tried)) <= MOST_PEERS + 1
    # What lies between two halves of the list, wherever it is cut, lies between some that try each other.
    assert all(any(one >= hosts // 2 for one in those) for those in tried[: hosts // 2])


def test_hosts_that_fail_are_explained_and_the_others_examined(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'no such interpreter' >&2\nexit 9\n")
    python.chmod(0o700)
    one = examined("node1\nunknown\nnode3\nnode4", broken={"node3": str(python), "node4": "/no/python"})
    assert {name: error.kind for name, error in one.errors.items()} == {
        "unknown": "ssh.name-unknown",
        "node3": "python.failed",
        "node4": "python.missing",
    }
    assert one.errors["node3"].text == "the agent ended with status 9: no such interpreter"
    assert list(one.hosts) == ["node1"]
    assert set(one.hosts["node1"].reached) == {"node1"}


def test_a_host_that_is_lost_meanwhile_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Channel.measure_clock

    def lose(channel: Channel) -> tuple[float, float]:
        if channel.host == "node2":
            raise LostError("the SSH connection broke", "look at the host's console")
        return measure(channel)

    monkeypatch.setattr(Channel, "measure_clock", lose)
    one = examined("node[1-3]")
    assert one.errors["node2"].kind == "host.lost"
    assert list(one.hosts) == ["node1", "node3"]
    hosts = hostfile.parse("node[1-3]")
    assert "host.lost" in {finding.id for finding in judge(hosts, one, "mpirun") if finding.host == "node2"}


def test_an_address_that_is_not_the_hosts_own_is_found() -> None:
    one = examined("node1\nnode2 addr=192.0.2.1")
    findings = judge(hostfile.parse("node1\nnode2 addr=192.0.2.1"), one, "torchrun")
    assert [finding.host for finding in findings if finding.id == "address.wrong"] == ["node2"]
    assert not [finding for finding in findings if finding.id == "pair.unreachable"]


def test_a_host_without_a_free_port_says_so_and_is_examined() -> None:
    one = simulated("node[1-2]", node2={"open_port": {"refused": "no free port between 20000 and 31999"}})
    rendezvous = one.hosts["node2"].rendezvous
    assert isinstance(rendezvous, HostError)
    assert (rendezvous.kind, rendezvous.text) == ("port.none-free", "no free port between 20000 and 31999")
    assert set(one.hosts["node1"].reached) == {"node1"}


@pytest.mark.parametrize(
    "answer",
    [
        {"facts": {"time": "now"}},
        {"facts": {"time": 1.0, "hostname": 7}},
        {"health": {}},
        {"health": {**dataclasses.asdict(HEALTHY), "nofile": "many"}},
        {"health": {**dataclasses.asdict(HEALTHY), "folders": {"path": "/"}}},
        {
            "health": {
                **dataclasses.asdict(HEALTHY),
                "jobs": [{"job": "x", "pids": ["; rm -rf ~"], "kept": False}],
            }
        },
        {"open_port": {"port": "22"}},
        {"time": {"time": None}},
        {"reach": {"reached": {"node1": ["eth0"]}}},
        {"reach": {"reached": None}},
    ],
    ids="-".join,
)
def test_a_host_with_a_malformed_answer_is_named_and_the_others_examined(answer: dict[str, Frame]) -> None:
    one = simulated("node[1-3]", node2=answer)
    assert {name: error.kind for name, error in one.errors.items()} == {"node2": "host.protocol-error"}
    assert list(one.hosts) == ["node1", "node3"]


@pytest.mark.timed
def test_frozen_hosts_cost_one_time_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.deploy.features.check.command.HEALTH_SECONDS", 3.0)
    post = Channel.post

    def freeze(channel: Channel, request: Any, payload: bytes = b"", **words: object) -> object:
        future: Future[Any] = post(channel, request, payload, **words)
        return Future() if request is HEALTH and channel.host != "node1" else future

    monkeypatch.setattr(Channel, "post", freeze)
    began = time.monotonic()
    one = simulated("node[1-9]")
    hold("eight frozen hosts", time.monotonic() - began, 3.0 + 3.0, excludes=8 * 3.0)
    assert {(error.kind, error.text) for error in one.errors.values()} == {
        ("host.lost", "no answer within 3 s")
    }
    assert list(one.hosts) == ["node1"]


def test_another_request_with_a_payload_does_not_excuse_a_silence() -> None:
    """The later modules of the agent, sent to a lost host, hid its loss for 5 s more."""
    thought = threading.Event()
    channel = Channel("node1", Simulated({}, thought.wait), Inbox())
    channel.post(FACTS)
    time.sleep(0.2)
    channel.post(LOAD, b"code")
    assert channel.silent_for() >= 0.2
    thought.set()


def test_only_a_host_that_owes_an_answer_is_silent() -> None:
    """One that waited for slower hosts to get their code was taken for frozen."""
    thought = threading.Event()
    channel = Channel("node1", Simulated({}, thought.wait), Inbox())
    channel.ask(TIME)
    time.sleep(0.3)
    assert channel.silent_for() == 0.0
    asked = time.monotonic()
    slow: Future[Any] = channel.post(FACTS)
    time.sleep(0.2)
    assert 0.2 <= channel.silent_for() <= time.monotonic() - asked
    thought.set()
    slow.result(60)
    assert channel.silent_for() == 0.0


def test_the_gpus_that_jobs_lease_are_named() -> None:
    facts = dataclasses.asdict(NODE) | {"devices": 4, "time": time.time(), "steady": time.monotonic()}
    gpus = [{"index": 0, "name": "a", "user": "alice", "job": "j"}, {"index": 1, "name": "b", "process": "p"}]
    said = {"kind": "nvidia", "waiting": []}
    node1, node2 = ({"facts": facts, "leases": {**said, "gpus": devices}} for devices in (gpus, []))
    found = simulated("node[1-2]", node1=node1, node2=node2)
    leased = {name: report.leased for name, report in found.hosts.items()}
    assert leased == {"node1": (Device(0, "a", user="alice", job="j"),), "node2": ()}
