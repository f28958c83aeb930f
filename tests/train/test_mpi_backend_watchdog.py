"""What the watchdog asks of the key-value store, and what it concludes, without MPI and without waiting."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from muster.train.mpi_backend.order import Order, note
from muster.train.mpi_backend.reduction import plain
from muster.train.mpi_backend.watchdog import LOOK, PATIENCE, VISITS, Presence, Watched
from muster.train.mpi_backend.work_queue import EVERY, Running

TIMEOUT = 600.0  # seconds


class Store:
    """A key-value store that counts its requests."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}
        self.requests = 0

    def set(self, key: str, value: str) -> None:
        self.requests += 1
        self.entries[key] = value

    def get(self, key: str) -> bytes:
        self.requests += 1
        return self.entries[key].encode()

    def add(self, key: str, amount: int) -> int:
        self.requests += 1
        self.entries[key] = str(int(self.entries.get(key, "0")) + amount)
        return int(self.entries[key])

    def check(self, keys: list[str]) -> bool:
        self.requests += 1
        return all(key in self.entries for key in keys)

    def delete_key(self, key: str) -> bool:
        self.requests += 1
        return self.entries.pop(key, None) is not None


class Queue:
    """A queue of collectives in which one runs, or none."""

    name = "0"

    def __init__(self, begun: int) -> None:
        self.begun = begun
        self.running: Running | None = Running("all_reduce", TIMEOUT, 0.0, begun)

    def look(self) -> Running | None:
        return self.running


class Job:
    """All ranks of a group, with one watchdog each, and a clock that only `run` moves."""

    def __init__(self, size: int) -> None:
        self.store = Store()
        self.queues = [Queue(begun=7) for _ in range(size)]
        self.now = 0.0
        self.watched = []
        for rank, queue in enumerate(self.queues):
            presence = Presence.create(self.store, "group", rank, size)
            any_queue: Any = queue
            self.watched.append(Watched(any_queue, rank, size, presence, started=0.0))
        self.store.requests = 0

    def run(self, seconds: float) -> Counter[int]:
        """Let the time pass; returns the requests of each second."""
        requests: Counter[int] = Counter()
        end = self.now + seconds
        while self.now < end:
            self.now += LOOK
            before = self.store.requests
            for watched in self.watched:
                if watched.due(self.now):
                    watched.visit(self.now)
            requests[int(self.now)] += self.store.requests - before
        return requests

    def verdicts(self) -> list[str]:
        return [verdict for watched in self.watched if (verdict := watched.verdict(self.now))]


@pytest.mark.parametrize("size", [2, 16, 512])
def test_a_job_makes_a_few_requests_a_second_at_any_size(size: int) -> None:
    job = Job(size)
    requests = job.run(400)
    assert sum(requests.values()) > 0
    # A visit is at most three: delete the entry of another collective, write this one's, read who has left.
    assert max(requests.values()) <= 3 * (VISITS + 1)
    for queue in job.queues:
        queue.begun, queue.running = 8, Running("all_reduce", TIMEOUT, job.now, 8)
    assert max(job.run(400).values()) <= 3 * (VISITS + 1)


def test_entries_of_ranks_that_waited_are_deleted() -> None:
    job = Job(16)
    job.run(30)
    assert len(job.store.entries) == 16
    for queue in job.queues:
        queue.running = None
    job.run(30)
    assert job.store.entries == {}


def test_a_rank_that_left_ends_the_job_within_seconds_though_it_has_512() -> None:
    job = Job(512)
    job.queues[3].begun, job.queues[3].running = 6, None
    job.watched[3].leave()
    job.run(PATIENCE + 3)
    assert "s in all_reduce, number 7 of group 0: rank 3 left the group" in job.verdicts()[0]


def test_the_watchdog_may_judge_while_it_is_read_who_has_left() -> None:
    """The store is visited in a thread of its own; here, whenever the watchdog looks at a rank."""
    job = Job(4)
    job.run(PATIENCE + 3)

    class ReadMeanwhile(int):
        def __lt__(self, number: int) -> bool:
            job.watched[2].leave()
            job.watched[0].visit(job.now)
            return int(self) < number

    job.watched[0]._left = {3: ReadMeanwhile(6)}
    assert "rank 3 left the group" in job.verdicts()[0]
    assert sorted(job.watched[0]._left) == [2, 3]


def test_a_rank_that_left_after_its_part_is_no_reason() -> None:
    """It was the root of a broadcast, say, and the others still pass the data on."""
    job = Job(4)
    job.queues[3].running = None
    job.watched[3].leave()
    job.run(60)
    assert job.verdicts() == []


@pytest.mark.parametrize("absent", [[2], [0, 5, 6], list(range(1, 16))])
def test_ranks_that_do_not_come_are_named(absent: list[int]) -> None:
    job = Job(16)
    for rank in absent:
        job.queues[rank].begun, job.queues[rank].running = 6, None
    job.run(TIMEOUT)
    assert job.verdicts() == []
    job.run(2)
    shown = ", ".join(map(str, absent[:8])) + (" and 7 more" if len(absent) > 8 else "")
    words = f"rank{'s' * (len(absent) > 1)} {shown} did not come"
    assert f"the time-out is 600 s, and {words}" in job.verdicts()[0]


def test_a_store_that_fails_ends_nothing_before_the_time_out() -> None:
    job = Job(2)

    def fail(*_: object) -> None:
        raise RuntimeError("Connection reset by peer")

    job.store.check = fail  # type: ignore[assignment,method-assign]
    job.run(TIMEOUT)
    assert job.verdicts() == []
    job.run(2)
    assert "the time-out is 600 s, and another rank did not come" in job.verdicts()[0]


def test_entries_of_a_group_of_the_same_name_before_it_mean_nothing() -> None:
    job = Job(2)
    before = Presence.create(job.store, "the group before", 1, 2)
    assert before is not None
    before.leave(0)
    job.run(60)
    assert job.verdicts() == []


SUM, MAX = (note("all_reduce", 4, reduction=plain(name, torch.float32).number) for name in ("SUM", "MAX"))
BROADCAST, FROM_1 = (note("broadcast", 16, root) for root in (0, 1))


class Others:
    """A communicator on which the other rank has called `theirs`."""

    size = 2

    def __init__(self, theirs: list[int]) -> None:
        self.theirs = array("Q", theirs)

    def Iallgather(self, sent: list[Any], received: list[Any]) -> Mock:  # noqa: N802 - mpi4py's name
        mine = sent[0]
        if mine.typecode == "q":  # a checksum
            theirs = array("q", (mine[0], hash(tuple(self.theirs)), mine[2]))
        else:
            theirs = array("Q", self.theirs.tobytes().ljust(8 * EVERY, b"\xff"))
        received[0][:] = mine + theirs
        return Mock(Test=lambda: True)


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        ([BROADCAST, SUM, BROADCAST, SUM], ""),
        (
            [BROADCAST, SUM, SUM, BROADCAST],
            "number 3: it called all_reduce SUM float32 of 4 bytes, and rank 0 broadcast from rank 0",
        ),
        (
            [BROADCAST, SUM, FROM_1, SUM],
            "number 3: it called broadcast from rank 1 of 16 bytes, and rank 0 broadcast from rank 0",
        ),
        (
            [BROADCAST, MAX, BROADCAST, SUM],
            "number 2: it called all_reduce MAX float32 of 4 bytes, and rank 0 all_reduce SUM",
        ),
        ([BROADCAST, SUM], "number 3: it called nothing more, and rank 0 broadcast from rank 0"),
    ],
)
def test_unlike_calls_are_told_with_the_first_number(theirs: list[int], says: str) -> None:
    others: Any = Others(theirs)
    order = Order(others)
    order.notes.extend([BROADCAST, SUM, BROADCAST, SUM])
    order.compare()
    order.settled()
    assert order.verdict.startswith(f"rank 1 left the order of the others at {says}" if says else "")
    assert bool(order.verdict) == bool(says)
