"""Files on their way to hosts that freeze, have no room, or give what is wrong."""

from __future__ import annotations

import io
import threading
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from muster.deploy.core.connect import listener
from muster.deploy.core.connect.inbox import Inbox
from muster.deploy.core.connect.pipe import LostError
from muster.deploy.core.connect.reports import Event, FileGot, FileHave, FileStuck, Report
from muster.deploy.core.connect.requests import Nothing, Request
from muster.deploy.core.content import tree_transfer as module
from muster.deploy.core.content.messages import BLOB_COMPLETE, BLOB_PULL, FilesServed
from muster.deploy.core.content.transfer_state import Transfer
from muster.deploy.core.content.tree_transfer import TRIES, Transfers
from muster.deploy.core.errors import MusterError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.hostfile import Host
from tests.waiting import PATIENCE

NAMES = ("node1", "node2", "node3")
DIGEST, OTHER = "aa" * 32, "bb" * 32


class Channel:
    """A host that takes and gives everything, unless `refusal`, `frozen` or `pulls` say otherwise."""

    def __init__(self, host: str, events: Inbox) -> None:
        self.host, self.events = host, events
        self.refusal, self.frozen = "", False
        self.pulls: list[Report] = []
        """What it reports of one pull after another; of later ones, that it got the file."""
        self.asked: list[tuple[str, Any]] = []
        self.cut, self.ended = threading.Event(), False
        self.greeted = self.remote = True

    def post(self, request: Request[Any], payload: bytes = b"", **words: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.asked.append((request.name, [source[0] for source in words.get("sources", ())]))
        if payload and self.frozen:
            assert self.cut.wait(PATIENCE)
            self.ended = True
            future.set_exception(LostError("the SSH connection broke", host=self.host))
        elif payload and self.refusal:
            future.set_exception(MusterError(self.refusal, host=self.host))
        else:
            future.set_result(Nothing())
        if request is BLOB_COMPLETE:
            self.report(
                FileStuck(words["digest"], 0, "damaged") if self.refusal else FileGot(words["digest"])
            )
        if request is BLOB_PULL:
            self.report(self.pulls.pop(0) if self.pulls else FileGot(words["digest"]))
        return future

    def wait(self, future: Future[Any], seconds: float, since: float | None = None) -> Any:
        return future.result(PATIENCE)

    def report(self, report: Report) -> None:
        self.events.put(Event(self.host, report), wait=False)

    def silent_for(self) -> float:
        return 1000.0 if self.frozen else 0.0

    def give_up(self) -> None:
        pass

    def close(self) -> None:
        self.cut.set()

    def count(self, word: str) -> int:
        return sum(word == asked for asked, _ in self.asked)


class Cluster(listener.Listener):
    """Three hosts."""

    def __init__(self) -> None:
        events = Inbox()
        channels: Any = {name: Channel(name, events) for name in NAMES}
        super().__init__(events, channels)
        self.hosts = hostfile.parse("node[1-3]")

    def data_addresses(self, host: Host) -> list[str]:
        return []


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(listener, "PING_SECONDS", 0.01)
    return Cluster()


def transfer(hosts: tuple[str, ...] = NAMES, **choices: Any) -> Transfer:
    content = choices.pop("content", b"0123456789")
    digest, opened = choices.pop("digest", DIGEST), partial(io.BytesIO, content)
    return Transfer(digest, len(content), hosts, opened, **choices)


def served() -> dict[str, FilesServed]:
    return {name: FilesServed(20123, ("10.0.0.1",), {}, "ef" * 16) for name in NAMES}


def bring(cluster: Any, *files: Transfer) -> Transfers:
    told: list[tuple[int, int]] = []
    transfers = Transfers(cluster, served(), lambda done, total: told.append((done, total)))
    total = sum(file.size * len(file.hosts) for file in files)
    transfers.bring(files, total)
    assert transfers.lost or told[-1] == (total, total)
    return transfers


def test_a_file_leaves_this_machine_once_and_goes_from_host_to_host(cluster: Any) -> None:
    transfers = bring(cluster, transfer(forget=True))
    assert (transfers.sent, transfers.lost) == (10, {})
    assert [cluster.channels[name].count("blob_take") for name in NAMES] == [1, 0, 0]
    assert [cluster.channels[name].count("blob_forget") for name in NAMES] == [1, 1, 1]


@pytest.mark.parametrize("frozen", NAMES)
def test_a_host_that_freezes_while_it_is_fed_keeps_no_other_waiting(cluster: Any, frozen: str) -> None:
    cluster.channels[frozen].frozen = True
    files = [transfer((name,), digest=f"{number}a" * 32) for number, name in enumerate(NAMES)]
    transfers = bring(cluster, *files)
    assert transfers.lost == {frozen: "silent for 10 s: frozen, or cut off from the network"}
    assert all(cluster.channels[name].count("blob_complete") == 1 for name in NAMES if name != frozen)


def test_a_host_without_room_is_named_with_its_own_words(cluster: Any) -> None:
    cluster.channels["node1"].refusal = "no space left on the disk of /home/ml/.muster/data"
    transfers = bring(cluster, transfer(("node1",)))
    assert transfers.lost == {"node1": "no space left on the disk of /home/ml/.muster/data"}


def test_a_host_that_got_stuck_gets_the_file_from_hosts_that_have_it_by_then(cluster: Any) -> None:
    cluster.channels["node3"].pulls = [FileStuck(DIGEST, 4, "node1 is not reached")]
    transfers = bring(cluster, transfer())
    assert (transfers.sent, transfers.lost) == (10, {})
    assert transfers.notes == ["note: node3 could not read a file from another host: node1 is not reached"]
    first, second = (sources for word, sources in cluster.channels["node3"].asked if word == "blob_pull")
    assert (first, "node2" in second) == (["node1"], True)


def test_what_no_host_can_give_comes_from_here_and_from_where_it_stopped(cluster: Any) -> None:
    cluster.channels["node3"].pulls = [FileStuck(DIGEST, 4, "no host is reached")] * (TRIES + 1)
    transfers = bring(cluster, transfer())
    assert (transfers.sent, transfers.lost) == (10 + 6, {})


def test_a_host_that_never_gets_the_file_is_given_up_with_its_own_words(cluster: Any) -> None:
    node1 = cluster.channels["node1"]
    node1.report = lambda report: Channel.report(
        node1, FileStuck(DIGEST, 0, "damaged on the way") if isinstance(report, FileGot) else report
    )
    transfers = bring(cluster, transfer(("node1",)))
    assert transfers.lost == {"node1": "damaged on the way"}
    assert node1.count("blob_take") == 1 + 2 * TRIES


def test_the_source_of_wrong_content_is_given_up_and_not_who_got_it(cluster: Any) -> None:
    wrong = FileGot(DIGEST, "a chunk does not match the manifest", wrong=True)
    cluster.channels["node2"].pulls, cluster.channels["node3"].pulls = [wrong], [wrong]
    lied: list[bool] = []
    wrong_source = transfer(
        ("node2", "node3"),
        source="node1",
        is_right=lambda: lied.append(True),
        replacement=lambda host: transfer((host,), digest=OTHER),
    )
    transfers = bring(cluster, wrong_source)
    assert (transfers.lost, lied) == ({}, [True, True])
    assert sum(cluster.channels[name].count("blob_complete") for name in ("node2", "node3")) == 2


def test_who_calls_right_content_wrong_is_given_up_and_not_the_source(cluster: Any) -> None:
    cluster.channels["node2"].pulls = [FileGot(DIGEST, "a chunk does not match the manifest", wrong=True)]
    transfers = bring(cluster, transfer(("node2", "node3"), source="node1"))
    assert transfers.lost == {"node2": "it reported wrong chunks of node1; they are right, by the check here"}


def test_a_host_that_drips_does_not_delay_a_push(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALLED_SECONDS", 1.0)
    node1, have = cluster.channels["node1"], iter(range(1 << 30))

    def report(report_: Report) -> None:
        """Tell of one more byte each tenth of a second, in place of the whole file."""
        Channel.report(node1, FileHave(DIGEST, next(have)))
        if not node1.cut.wait(0.1):
            threading.Thread(target=report, args=(report_,), daemon=True).start()

    node1.report = report
    try:
        lost = bring(cluster, transfer(("node1",), content=bytes(1 << 16))).lost
    finally:
        node1.cut.set()
    assert lost == {"node1": "nothing arrived for 1 s"}


def test_the_same_bytes_for_something_else_wait_for_their_turn(cluster: Any) -> None:
    twice = transfer(arguments={"chunks": (1,)}), transfer(arguments={"chunks": (2, 3)})
    transfers = bring(cluster, *twice)
    assert transfers.lost == {}
    assert cluster.channels["node1"].count("blob_complete") == 2
