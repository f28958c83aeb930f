"""A connection over which somebody reads a job breaks: what is read is whole, and nothing comes twice."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.deploy.core.connect.pipe import LostError, SilentError
from muster.deploy.core.connect.requests import OUTPUT, Request
from muster.deploy.core.errors import MusterError
from muster.deploy.core.job import reconnect
from muster.deploy.core.job.reconnect import Reconnecting
from muster.deploy.core.wire.job_folders import JobFolders

JOB = "20260101-000000-abcd"
KNOWN: Any = SimpleNamespace(state=SimpleNamespace(job=JOB, running=True))
SILENT = SilentError("silent for 10 s: frozen, or cut off from the network", "look", host="node1")


class Host:
    """An agent that reads the runs of a folder. `breaks`: before or after which of its answers it is lost."""

    host = "node1"

    def __init__(self, runs: Path, *breaks: tuple[int, bool]) -> None:
        self._runs, self._breaks = runs, dict(breaks)
        self._jobs, self._asked = JobFolders(runs, inside="."), 0
        self.refusals: list[MusterError] = []
        self.lie: MusterError | None = None

    def ask(self, request: Request[Any], payload: bytes = b"", *, seconds: float = 0.0, **words: Any) -> Any:
        self._asked += 1
        if self.lie:
            raise self.lie
        read = self._breaks.get(self._asked)
        if read is False:
            raise SILENT
        answer = request.read(self._jobs.do_output(words, payload), b"")
        if read:
            raise SILENT
        return answer

    def reopen(self) -> Host:
        if self.refusals:
            raise self.refusals.pop(0)
        self._jobs = JobFolders(self._runs, inside=".")
        return self


class Clock:
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(reconnect, "time", clock)
    return clock


def printed(runs: Path, text: str) -> None:
    logs = runs / JOB / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    for name, part in (("rank-0000@node1.out", text), ("rank-0001@node2.out", text.upper())):
        with (logs / name).open("a") as log, (logs / "order").open("a") as order:
            log.write(part)
            order.write(f"{len(part)} {name}\n")


def read(place: Reconnecting, **words: Any) -> str:
    return "".join(text for _, text in place.ask(OUTPUT, job=JOB, rank=None, **words).output)


@pytest.mark.parametrize("breaks", [(), ((2, True),), ((2, False), (3, True)), ((1, True), (4, True))])
def test_output_is_read_once_over_many_breaks(tmp_path: Path, breaks: tuple[tuple[int, bool], ...]) -> None:
    place = Reconnecting(KNOWN, Host(tmp_path, *breaks), lambda line: None)  # type: ignore[arg-type]
    seen = ""
    for text in ("a\n", "b\n", "c\n"):
        printed(tmp_path, text)
        seen += read(place)
    assert seen == "a\nA\nb\nB\nc\nC\n"


def test_what_was_passed_over_stays_so_after_a_break(tmp_path: Path) -> None:
    place = Reconnecting(KNOWN, Host(tmp_path, (2, False)), lambda line: None)  # type: ignore[arg-type]
    printed(tmp_path, "old\n")
    assert read(place, skip=True) == ""
    printed(tmp_path, "new\n")
    assert read(place) == "new\nNEW\n"


def test_a_break_is_said_once_and_so_is_its_end(tmp_path: Path) -> None:
    host, said = Host(tmp_path, (1, False), (2, False)), list[str]()
    host.refusals = [LostError("no route to host")] * 3
    printed(tmp_path, "a\n")
    assert read(Reconnecting(KNOWN, host, said.append)) == "a\nA\n"  # type: ignore[arg-type]
    assert said == [
        "node1: silent for 10 s: frozen, or cut off from the network; connecting again for up to 60 s",
        "node1: connected again",
    ]


def test_after_a_minute_it_says_how_to_come_back(tmp_path: Path, clock: Clock) -> None:
    host = Host(tmp_path, (1, False))
    host.refusals = [LostError("no route to host")] * 100
    with pytest.raises(LostError) as caught:
        read(Reconnecting(KNOWN, host, lambda line: None))  # type: ignore[arg-type]
    assert str(caught.value) == (
        "node1: no connection for 60 s: no route to host; the job keeps running on its hosts; "
        f"see it again with: muster attach {JOB}"
    )
    assert reconnect.TRY_SECONDS <= clock.now <= reconnect.TRY_SECONDS + reconnect.PAUSE_SECONDS


def test_a_host_that_sends_what_no_agent_sends_is_not_asked_again(tmp_path: Path, clock: Clock) -> None:
    host = Host(tmp_path)
    host.lie = LostError("protocol error", kind="host.protocol-error", host="node1")
    with pytest.raises(LostError, match="protocol error"):
        read(Reconnecting(KNOWN, host, lambda line: None))  # type: ignore[arg-type]
    assert clock.now == 0.0


def test_a_host_lost_at_each_request_is_given_up(tmp_path: Path, clock: Clock) -> None:
    host = Host(tmp_path, *((number, False) for number in range(1000)))
    with pytest.raises(LostError, match="no connection for 60 s"):
        read(Reconnecting(KNOWN, host, lambda line: None))  # type: ignore[arg-type]
    assert clock.now >= reconnect.TRY_SECONDS
