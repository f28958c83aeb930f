"""Which hosts are silent, and whether this machine is the cause: times in, verdicts out."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from muster.deploy.core.agent.main import Worker
from muster.deploy.core.connect import listener, silence
from muster.deploy.core.connect.inbox import Inbox
from muster.deploy.core.connect.listener import Listener
from muster.deploy.core.connect.pipe import SilentError
from muster.deploy.core.connect.reports import Lost
from muster.deploy.core.connect.silence import Clocks, Sign, losses, standstill
from muster.deploy.core.wire.frames import Frame
from tests.unit.test_execute import FakeChannel

HERE = Sign(0.0, remote=False)
LOGIN = Sign(25.0, greeted=False)


@pytest.mark.parametrize(
    ("signs", "blamed", "shared"),
    [
        # One host alone is to blame, however the others do.
        ([0.5, 1.0, 0.0], [], []),
        ([10.5, 1.0, 0.0], [0], []),
        ([10.5, 1.9, 12.0], [0, 2], []),
        ([10.5], [0], []),
        ([10.5, 5.9], [0], []),
        ([300.0, 10.5, 1.0], [0, 1], []),
        # All fall silent at about the same time: no host is to blame.
        ([10.5, 9.0, 8.6], [], [0, 1, 2]),
        ([10.5, 6.6], [], [0, 1]),
        ([14.6, 10.5], [0, 1], []),
        # A host that was lost long ago says nothing about the others.
        ([300.0, 10.5, 9.0], [0], [1, 2]),
        ([300.0, 10.5], [0, 1], []),
        # This machine is always heard, and says nothing about the network.
        ([HERE, 10.5, 9.0], [], [1, 2]),
        ([HERE, 10.5], [1], []),
        ([Sign(10.5, remote=False)], [0], []),
        ([Sign(10.5, remote=False), 9.0, 8.0], [0], []),
        # Before its greeting a host has more time.
        ([LOGIN, 1.0], [], []),
        ([Sign(30.5, greeted=False), 1.0], [0], []),
        ([Sign(30.5, greeted=False), Sign(29.0, greeted=False)], [], [0, 1]),
        ([], [], []),
    ],
)
def test_the_judgement_of_silence(signs: list[Any], blamed: list[int], shared: list[int]) -> None:
    known = {f"node{at}": one if isinstance(one, Sign) else Sign(one) for at, one in enumerate(signs)}
    lost = losses(known)
    assert sorted(lost) == [f"node{at}" for at in sorted({*blamed, *shared})]
    for at in blamed:
        assert "frozen, or cut off from the network" in str(lost[f"node{at}"])
        assert not lost[f"node{at}"].together
    for at in shared:
        assert f"all {len(shared)} hosts have been silent for" in str(lost[f"node{at}"])
        assert "this machine has lost its network" in str(lost[f"node{at}"])


@pytest.mark.parametrize(
    ("steady", "awake", "found"),
    [(2.0, 2.0, None), (3.9, 0.0, None), (20.0, 20.0, False), (20.0, 1.0, True), (20.0, 19.0, False)],
)
def test_a_stopped_process_is_no_sleeping_machine(steady: float, awake: float, found: bool | None) -> None:
    judged = standstill(Clocks(100.0, 50.0), Clocks(100.0 + steady, 50.0 + awake))
    assert (judged.machine if judged else None) is found
    assert judged is None or judged.seconds == steady


class Time:
    """The clock of this machine, moved by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(listener, "time", SimpleNamespace(monotonic=clock.monotonic))
    monkeypatch.setattr(listener, "now", clock.monotonic)
    return clock


def listening(clock: Time, *silences: float) -> tuple[Listener, dict[str, FakeChannel]]:
    channels = {f"node{number}": FakeChannel() for number, _ in enumerate(silences)}
    for channel, seconds in zip(channels.values(), silences, strict=True):
        channel.silence = seconds
    known: Any = channels
    return Listener(Inbox(), known), channels


def test_a_host_is_lost_once_and_is_not_asked_again(clock: Time) -> None:
    heard, channels = listening(clock, 10.5, 0.0)
    event = heard.hear(0.0)
    assert event is not None
    assert isinstance(event.report, Lost)
    assert isinstance(event.report.reason, SilentError)
    assert (event.host, [*heard.silent]) == ("node0", ["node0"])
    clock.now += 3.0
    assert heard.hear(0.0) is None
    assert [word for word, _ in channels["node0"].asked] == ["give up"]
    assert [word for word, _ in channels["node1"].asked] == ["time", "time"]


def test_a_host_that_owes_an_answer_is_not_asked_for_more(clock: Time) -> None:
    heard, channels = listening(clock, 3.0)
    assert heard.hear(0.0) is None
    assert channels["node0"].asked == []


def test_hosts_that_this_process_could_not_hear_are_not_silent(clock: Time) -> None:
    heard, channels = listening(clock, 0.0, 0.0)
    assert heard.hear(0.0) is None
    for channel in channels.values():
        channel.silence = silence.SILENCE_SECONDS + 20.0
    clock.now += silence.SILENCE_SECONDS + 20.0  # SIGSTOP
    assert heard.hear(0.0) is None
    assert heard.silent == {}


def test_a_busy_report_has_the_processor_time_of_the_thread_that_answers() -> None:
    def answer(request: Frame, payload: bytes) -> Frame:
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass
        return {}

    worker = Worker(answer)
    worker.begin({}, b"")
    assert worker.answer_within(60) == {}
    assert worker.cpu() >= 0.1
