"""The course of a job by its events: each attempt, and when each rank started, printed and ended. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ...core.text.text import describe_code
from ...core.wire.job_folders import STOPS
from .run_records import Records, RunRecord, list_of, number_of, records_of

RankOutcome = Literal["done", "failed", "ended with it", "cut off", "running", "never started"]
_OF_RANKS = frozenset({"rank.started", "rank.printed", "rank.ended", "rank.cut-off"})


@dataclass
class RankCourse:
    """One rank in one attempt. Times are seconds since the epoch, None for an event that did not happen."""

    rank: int
    host: str
    started: float | None = None
    printed: float | None = None
    last_printed: float | None = None
    ended: float | None = None
    code: int | None = None
    outcome: RankOutcome = "never started"


@dataclass
class Attempt:
    """One attempt from its start to its end."""

    number: int
    began: float
    ended: float
    running: bool
    ranks: dict[int, RankCourse] = field(default_factory=dict)
    failure: FirstFailure | None = None


@dataclass(frozen=True)
class FirstFailure:
    """The first failure of an attempt."""

    at: float
    host: str
    rank: int | None
    text: str
    is_stop: bool = False
    """Whether a user ended the job."""

    @property
    def headline(self) -> str:
        """`rank 1 on node2: exit status 1`, `stopped by SIGINT (2)`."""
        if self.is_stop:
            return f"stopped by {self.text}"
        where = f"rank {self.rank} on {self.host}" if self.rank is not None else self.host
        return f"{where}: {self.text}" if where else self.text


def course(records: Records, now: float) -> list[Attempt]:
    """Every attempt of a job, by its events."""
    results = _results(records.result)
    by_attempt: dict[int, list[RunRecord]] = {}
    for event in records.events:
        by_attempt.setdefault(event["attempt"], []).append(event)
    numbers = sorted(by_attempt)
    running = records.state.get("state") == "running"
    return [
        _attempt(
            by_attempt[number],
            results.get(number, {}),
            _placement(records.launches, number),
            now if running and number == numbers[-1] else None,
        )
        for number in numbers
    ]


def _results(result: RunRecord) -> dict[int, RunRecord]:
    """The result of each attempt by its number."""
    every = [*records_of(result.get("earlier_attempts")), result]
    return {entry["attempt"]: entry for entry in every if type(entry.get("attempt")) is int}


def _placement(launches: Sequence[RunRecord], attempt: int) -> Iterator[tuple[int, str]]:
    for launch in launches:
        if launch.get("attempt") == attempt:
            for host in records_of(launch.get("hosts")):
                for rank in list_of(host.get("ranks")):
                    if isinstance(rank, int):
                        yield rank, str(host.get("name"))


def _attempt(
    events: Sequence[RunRecord], result: RunRecord, placement: Iterable[tuple[int, str]], now: float | None
) -> Attempt:
    times = [_time(event["at"]) for event in events]
    ended = number_of(result.get("ended")) or now or max(times)
    began = number_of(result.get("started")) or min(times)
    attempt = Attempt(
        number=events[0]["attempt"],
        began=min([began, *times]),
        ended=max([ended, *times]),
        running=now is not None,
        ranks={rank: RankCourse(rank, host) for rank, host in placement},
    )
    for event in events:
        _take(attempt, event)
    attempt.failure = _failure(result.get("first_failure"), events)
    for row in attempt.ranks.values():
        row.outcome = _outcome(row, attempt)
    attempt.ranks = dict(sorted(attempt.ranks.items()))
    return attempt


def _take(attempt: Attempt, event: RunRecord) -> None:
    kind, rank, at = event.get("type"), event.get("rank"), _time(event["at"])
    if not isinstance(rank, int) or kind not in _OF_RANKS:
        return
    row = attempt.ranks.setdefault(rank, RankCourse(rank, str(event.get("host"))))
    if kind == "rank.started":
        row.started = at
    elif kind == "rank.printed":
        row.printed = at
    else:
        row.last_printed = number_of(event.get("printed"))
        if kind == "rank.ended":
            row.ended, row.code = at, event["code"] if isinstance(event.get("code"), int) else None


def _failure(first: object, events: Sequence[RunRecord]) -> FirstFailure | None:
    """The failure that the result names; of a running attempt, the first one that was reported."""
    if isinstance(first, Mapping) and number_of(first.get("time")) is not None:
        text = str(first.get("reason") or "").removeprefix("stopped by ")
        return _failure_of(first, _time(first["time"]), text, is_stop=str(first.get("kind")) in STOPS)
    reported = [
        event
        for event in events
        if event.get("exit_status") is not None and event.get("type") not in {"attempt.ended", "job.ended"}
    ]
    if not reported:
        return None
    event = min(reported, key=lambda event: _time(event["at"]))
    is_stop = event.get("type") in {"job.interrupted", "job.stopped"}
    return _failure_of(event, _time(event["at"]), str(event.get("text") or ""), is_stop=is_stop)


def _failure_of(record: RunRecord, at: float, text: str, *, is_stop: bool) -> FirstFailure:
    rank = record.get("rank")
    return FirstFailure(
        at, str(record.get("host") or ""), rank if isinstance(rank, int) else None, text, is_stop=is_stop
    )


def _outcome(row: RankCourse, attempt: Attempt) -> RankOutcome:
    if row.ended is not None:
        if row.code == 0:
            return "done"
        first = attempt.failure
        return "failed" if first is None or first.rank == row.rank else "ended with it"
    if attempt.failure and attempt.failure.rank == row.rank:
        return "failed"
    if row.started is None and row.printed is None:
        return "running" if attempt.running else "never started"
    return "running" if attempt.running else "cut off"


def how(row: RankCourse) -> str:
    """How a rank ended, as text: `exit status 1`, `SIGTERM (15), ended with it`."""
    if row.code is None or row.outcome == "done":
        return row.outcome
    described = describe_code(row.code)
    return described if row.outcome == "failed" else f"{described}, {row.outcome}"


def _time(value: object) -> float:
    return number_of(value) or 0.0
