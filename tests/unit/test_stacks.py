"""RankStacks of many ranks as few."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from muster.deploy.core.connect.pipe import LostError
from muster.deploy.core.connect.requests.attempt import MISSING, STORE, Missing
from muster.deploy.core.connect.requests.request import Nothing, Request
from muster.deploy.core.text.fold import fold
from muster.deploy.features.why import gather as evidence
from muster.deploy.features.why.diagnosis import gather_stacks

WAITS = [
    ["all_reduce", "torch/distributed.py", 10, False],
    ["<module>", "train.py", 3, True],
    ["_run", "<frozen runpy>", 8, False],
]
OPENS = [["open_shard", "data.py", 5, True], ["<module>", "train.py", 2, True]]


class FakeChannel:
    """An agent with the stacks of its ranks in its answer, or without an answer."""

    def __init__(self, host: str, stacks: Any, *, has_tool: bool = True) -> None:
        self.host, self.stacks, self.has_tool = host, stacks, has_tool
        self.stored: list[bytes] = []

    def ask(self, request: Request[Any], payload: bytes = b"", **words: Any) -> Any:
        if request is MISSING:
            return Missing(() if self.has_tool else words["digests"])
        if request is STORE:
            self.stored.append(payload)
            return Nothing()
        if self.stacks is None:
            raise LostError("the SSH connection broke", host=self.host)
        process = {"pid": 7, "state": "S"}
        ranks = {rank: {"now": 1.0, "process": process, **stack} for rank, stack in self.stacks.items()}
        return request.read({"ranks": ranks})


def test_equal_stacks_are_one_and_the_odd_one_is_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "own_py_spy", lambda: b"py-spy")
    hosts: Any = {
        "node1": FakeChannel("node1", {str(rank): {"frames": WAITS} for rank in (0, 1, 2, 3)}),
        "node2": FakeChannel("node2", {"4": {"frames": OPENS}, "5": {"frames": WAITS}}, has_tool=False),
    }
    found = gather_stacks("job", hosts)
    assert str(found).splitlines() == [
        "ranks 0-3,5:",
        "    all_reduce (torch/distributed.py:10)",
        "    <module> (train.py:3)",
        "rank 4:",
        "    open_shard (data.py:5)",
        "    <module> (train.py:2)",
    ]
    assert [len(channel.stored) for channel in hosts.values()] == [0, 1], "it travels where it is missing"


def test_a_host_that_gives_none_says_why_and_the_others_are_shown() -> None:
    hosts: Any = {
        "node1": FakeChannel("node1", {"0": {"error": "Permission Denied: Try running again"}}),
        "node2": FakeChannel("node2", None),
    }
    text = str(gather_stacks("job", hosts))
    assert "ptrace(2) is forbidden there: give the container the capability SYS_PTRACE" in text
    assert "node2: the SSH connection broke" in text


def test_what_most_share_comes_first() -> None:
    assert fold([(1, "b"), (2, "a"), (3, "a")]) == [([2, 3], "a"), ([1], "b")]
    assert fold(list[tuple[int, Future[None]]]()) == []
