"""The pace of the ranks of a recorded attempt. Nothing here can fail a job.

Every few seconds a look finds the ranks that come late to their collectives. Looks run in a separate thread,
and may use a small share of a processor of a host and of the driver: long ones are rarer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any

from ...core.connect.channel import Channel
from ...core.connect.fanout import in_thread
from ...core.hosts.host_sample import HostSample
from ...core.job.events import Event, JobEvent, Recorded, Said
from ...core.job.feature import Attempt, Feature
from ...core.job.result import Finding, LaunchResult
from ...core.wire.clock import now
from .gather import GatheredPace, gather, gather_pace
from .lateness import Pace
from .messages import LATE, MOST_LATE, Straggler
from .positions import Rank
from .stall_watch import Begun
from .stragglers import PACE, Summary, Surroundings, lines, pace_line

FIRST_SECONDS, LOOK_SECONDS = 5.0, 10.0
MOST_SHARE, MOST_DRIVER_SHARE = 0.005, 0.02  # of a processor
FEWER = 200
"""After so many looks they become fewer, so that a run of weeks has some thousand."""
LAST_SECONDS = 3.0  # that the end of a job waits for the last look
LIKE = 0.1
"""A lateness that differs by no larger share from the named one is not named again."""
LOOKS = 8
"""The number of readings of the stacks when a rank is late for the first time."""


@dataclass(frozen=True)
class Late(Finding):
    """The ranks of a recorded job that the others waited for, the latest first."""

    ranks: tuple[Straggler, ...]

    def lines(self, result: LaunchResult) -> Iterator[str]:
        return (f"slow: {line}" for line in lines(self.ranks, result.ended, ended=True))

    def as_json(self) -> Mapping[str, Any]:
        return {"late": [straggler.as_json() for straggler in self.ranks]}


class PaceWatch(Feature):
    """Looks at the pace of an attempt now and then, and once more at its end."""

    def begins(self, attempt: Attempt) -> None:
        """An attempt is looked at on its own."""
        self._attempt = attempt
        self._samples: dict[str, HostSample] = {}
        self._stalls = self._is_set_up = False
        self._began = time.monotonic()
        self._next = self._began + FIRST_SECONDS
        self._look: Future[_Look] | None = None
        self._summary = Summary()
        self._departed: dict[str, str] = {}
        """For each group of which ranks left the order of the others, a line about them."""
        self._named: Sequence[Straggler] = ()
        """The late ranks that job.json names."""

    def on_event(self, event: Event) -> None:
        """Samples explain why a rank is late. Of a job that stalls, looks stay frequent."""
        if isinstance(event, HostSample):
            self._samples[event.host] = event
        elif isinstance(event, JobEvent) and event.since is not None:
            self._stalls = event.type == "steps.stopped"

    def turn(self, attempt: Attempt) -> None:
        """Begin a look if it is time, or take in one that is done."""
        if self._look and self._look.done():
            look, self._look, pause = self._look, None, LOOK_SECONDS
            if look.exception() is None:
                self._note(look.result())
                fewer = 0.0 if self._stalls else (time.monotonic() - self._began) / FEWER
                pause = max(pause, look.result().pause, fewer)
            self._next = time.monotonic() + pause
        elif self._look is None and time.monotonic() >= self._next:
            self._look = in_thread(self._take)

    def explain(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """A last look: the last collectives of ranks that are gone can still be read."""
        if not result.failure:
            self._look = self._look or in_thread(self._take)
            wait([self._look], LAST_SECONDS)
        return result

    def ended(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """Name the late ranks, and those that called other collectives."""
        if self._look and self._look.done() and self._look.exception() is None:
            self._note(self._look.result())
        notes = (*result.notes, *self._departed.values())
        return result.having(Late(tuple(self._summary.late)), notes=notes)

    def _note(self, look: _Look) -> None:
        attempt, set_up = self._attempt, look.gathered.set_up
        attempt.emit(Begun(look.gathered.begun, look.gathered.newest))
        if not self._is_set_up and set_up.keys() >= attempt.state.placed.keys():
            self._is_set_up = True
            last, met = (max(ends) for ends in zip(*set_up.values(), strict=True))
            if attempt.state.began is not None:
                attempt.timings.note_at("imports, to init_process_group", attempt.state.began, last)
            attempt.timings.note_at("rendezvous", last, met)
        for departure in look.gathered.departures:
            if departure.group not in self._departed:
                spec, text = attempt.plan.spec, str(departure)
                self._departed[departure.group] = text
                attempt.emit(
                    JobEvent(at=look.at, type="order.left", job=spec.job, attempt=spec.attempt, text=text)
                )
                attempt.emit(Said(f"note: {text}"))
        if look.pace:
            number = attempt.plan.spec.attempt
            attempt.folder.append(PACE, pace_line(look.at, number, look.pace, look.late))
            self._name(look.late[:MOST_LATE])

    def _name(self, late: Sequence[Straggler]) -> None:
        """Record who is late, for `muster why`, if that has changed."""
        if len(late) != len(self._named) or not all(map(_is_like, self._named, late)):
            self._named = late
            self._attempt.emit(Recorded(LATE, json.dumps([rank.as_json() for rank in late])))

    def _take(self) -> _Look:
        """A look, in a thread. It reads stacks only for a late rank whose cause is unknown."""
        began = time.thread_time()
        job = self._attempt.plan.spec.job
        channels: Mapping[str, Channel] = dict(self._attempt.cluster.channels)
        gathered = gather_pace(job, channels)
        surroundings = Surroundings(gathered.pressures, dict(self._samples))
        pace = self._summary.add(gathered.paces, surroundings)
        if self._summary.needs_stacks:
            self._summary.explain(pace, replace(surroundings, looks=self._looks(job, channels)))
        took = time.thread_time() - began
        pause = max(gathered.cost / MOST_SHARE, took / MOST_DRIVER_SHARE)
        return _Look(now(), gathered, pace, list(self._summary.late), pause)

    def _looks(self, job: str, channels: Mapping[str, Channel]) -> list[list[Rank]]:
        looks: list[list[Rank]] = []
        while len(looks) < LOOKS and not self._attempt.state.over:
            looks.append(gather(job, channels)[0])
        return looks


@dataclass(frozen=True)
class _Look:
    at: float
    gathered: GatheredPace
    pace: Pace | None
    late: list[Straggler]
    pause: float
    """Seconds to the next look at least."""


def _is_like(named: Straggler, rank: Straggler) -> bool:
    """Whether a late rank was named with the same cause, and about the same lateness."""
    same = (named.rank, named.cause) == (rank.rank, rank.cause)
    return same and abs(rank.late - named.late) <= LIKE * named.late
