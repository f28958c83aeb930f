"""Notes that a job stalls, by the rule of features/why/stall.py, and ends it after `--stall-timeout`.

It is ended if a rank is stopped (SIGSTOP) or stuck in the kernel (a file system that does not answer) for
that long, if no rank prints or is at work, or if a stall that was noted lasts. A rank that computes in
silence is at work. One that polls while it waits, as under MPI and CUDA, looks busy; so does one in an
endless loop: only the note of a job whose collectives are recorded finds these.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...core.connect.fanout import in_thread
from ...core.hosts.host_sample import HostSample
from ...core.job.events import Event, FeatureEvent, JobEvent, Output, Recorded, Said
from ...core.job.feature import Attempt, Feature
from ...core.job.result import Failure, LaunchResult
from ...core.text.printed import figures_of
from ...core.text.text import count, duration
from ...core.wire.clock import now
from .diagnosis import gather_waits
from .gather import gather_begun
from .messages import STALL, stall_text
from .options import WhyOptions
from .stall import MANY_COLLECTIVES, StallRule

if TYPE_CHECKING:
    from .hang_verdict import HangVerdict

LOOK_SECONDS = 2.0
LONGEST_LINE = 500
_STUCK = {"T": "stopped (SIGSTOP)", "D": "stuck in the kernel (state D: a disk or network file system?)"}
UNSEEN_SECONDS = 60.0
"""A program without a record of collectives may have made a step by then."""


@dataclass(frozen=True)
class Begun(FeatureEvent):
    """How many collectives each rank of a recorded job has begun, the newest one at `at` (driver's clock)."""

    collectives: Mapping[int, int]
    at: float


class StallWatch(Feature):
    """Notes that the job stalls, with the cause, and that it continues; ends it if the user wants that.

    It also knows whether the program has made a step: a job that fails before its first one may fail again.
    """

    def begins(self, attempt: Attempt) -> None:
        """An attempt stalls on its own."""
        options = attempt.plan.spec.of(WhyOptions)
        self._recorded, self._limit = options.record, options.stall_timeout
        # A stall that ends the job is noted first.
        state, floor = attempt.state, min(options.stall_note, options.stall_timeout or options.stall_note)
        self._attempt, self._state, self._floor = attempt, state, floor
        self._rule = StallRule(floor, now())
        self._gpus = {rank: attempt.plan.gpu_of(placed) for rank, placed in state.placed.items()}
        self._begun: Mapping[int, int] = {}
        self._noted_at = 0.0
        """When the last stall was noted: a collective from before that does not end it."""
        self._answer: Future[tuple[Mapping[int, float], HangVerdict]] | None = None
        self._answered = 0.0
        """When the last answer came: a sample covers the 2 s before it."""
        self._since: float | None = None
        """The time of the last progress, if a stall was noted."""
        self._why, self._next_look, self._began = "", 0.0, now()

    def on_event(self, event: Event) -> None:
        """Output, samples and collectives are signs of life."""
        if isinstance(event, Output):
            matters = not self._rule.makes_steps or self._rule.since is not None
            step = matters and figures_of(event.text[-LONGEST_LINE:])
            self._rule.progressed(now(), step=bool(step and (step.step is not None or step.loss is not None)))
            self._note_end()
        elif isinstance(event, HostSample):
            looked = self._answer is not None or event.at < self._answered + LOOK_SECONDS
            self._rule.sampled(event, self._gpus, looked=looked)
            self._note_end()
            if self._limit and self._state.all_started and not self._state.failures:
                self._end_if_over(now(), self._limit)
        elif isinstance(event, Begun):
            self._take_begun(event)

    def turn(self, attempt: Attempt) -> None:
        """Look from time to time."""
        if self._floor and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + min(LOOK_SECONDS, self._floor / 2)
            self._look()

    def _end_if_over(self, at: float, limit: float) -> None:
        state, rule = self._state, self._rule
        running = [rank for rank in rule.seen if rank not in state.ends]
        for kind, name in _STUCK.items():
            if odd := rule.ranks_in(kind, running, at - limit):
                self._fail(f"{name} for {limit:.0f} s", odd)
                return
        if running and at - rule.active > limit:
            nothing = f"no rank has printed anything or used its processor for {limit:.0f} s"
            for kind, name in _STUCK.items():
                if odd := rule.ranks_in(kind, running, at):
                    self._fail(f"{name}, and {nothing}", odd)
                    return
            if odd := sorted(rank for rank in running if rank in state.ended_but_alive):
                self._fail(f"{state.ended_but_alive[odd[0]].reason}, and {nothing}", odd)
                return
            self._fail(nothing, [])
        elif self._since is not None and at - self._since > limit:
            self._fail(stall_text(at - self._since, self._why), [])

    def _fail(self, reason: str, odd: list[int]) -> None:
        if len(odd) > 1:
            reason = f"{self._state.name(odd)}: {reason}"
        placed = self._state.placed[odd[0]] if len(odd) == 1 else None
        host, rank = (placed.host, placed.rank) if placed else (None, None)
        self._attempt.fail(Failure("stall", reason, 3, host, rank, now(), event="job.stalled", waits=True))

    def explain(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """Say whether the program may have made a step, for the decision about a restart."""
        if result.failure and attempt.plan.spec.may_restart:
            return replace(result, stepped=self._stepped(result.failure))
        return result

    def ended(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """Note the stall in which the job ended, unless that is the failure itself."""
        if self._since is None or (result.failure and result.failure.kind == "stall"):
            return result
        return replace(result, notes=(*result.notes, stall_text(now() - self._since, self._why)))

    def _stepped(self, failure: Failure) -> bool:
        """Where no collective is recorded, only time tells."""
        if self._rule.makes_steps or failure.kind not in {"rank", "launcher"}:
            return True
        begun = gather_begun(self._attempt.plan.spec.job, self._attempt.answering)
        return max(begun.values(), default=0) >= MANY_COLLECTIVES or (
            not begun and now() - self._began > UNSEEN_SECONDS
        )

    def _take_begun(self, event: Begun) -> None:
        """The ranks are asked rarely, so the newest collective may be much older than the answer."""
        more = any(number > self._begun.get(rank, 0) for rank, number in event.collectives.items())
        if more and (at := min(event.at, now())) > self._noted_at:
            self._rule.progressed(at, step=max(event.collectives.values()) >= MANY_COLLECTIVES)
        self._begun = {**self._begun, **event.collectives}
        self._note_end()

    def _look(self) -> None:
        state, at = self._state, now()
        if state.failures:
            return
        if not state.all_started:
            self._rule.progressed(at)
            return
        if self._answer and self._answer.done():
            self._judge(self._answer, at)
            self._answer, self._answered = None, at
        elif not self._answer and self._rule.must_check(at, state.missing, recorded=self._recorded):
            channels = dict(self._attempt.cluster.channels)
            self._answer = in_thread(lambda: gather_waits(state.plan, channels))

    def _note_end(self) -> None:
        """Note at once that a stall has ended: the job may end a moment later."""
        if self._since is not None and self._rule.ended is not None:
            again = "steps again" if self._rule.ended_by_step else "output or processor use again"
            text = f"{again} after {duration(self._rule.ended - self._since)}"
            self._note("steps.resumed", self._since, now(), text)
            self._attempt.emit(Said(text))
            self._attempt.emit(Recorded(STALL, ""))
            self._since = None

    def _judge(self, answer: Future[tuple[Mapping[int, float], HangVerdict]], at: float) -> None:
        waits, verdict = ({}, None) if answer.exception() else answer.result()
        if self._rule.judge(at, self._state.missing, waits) and self._rule.since is not None:
            self._since, self._why, self._noted_at = self._rule.since, self._cause(verdict), at
            self._note("steps.stopped", self._since, at, self._why)
            self._attempt.emit(Said(f"note: {stall_text(at - self._since, self._why)}"))
            self._attempt.emit(Recorded(STALL, json.dumps({"since": self._since, "why": self._why})))

    def _note(self, kind: str, since: float, at: float, text: str) -> None:
        spec = self._attempt.plan.spec
        self._attempt.emit(
            JobEvent(at=at, type=kind, job=spec.job, attempt=spec.attempt, since=since, text=text)
        )

    def _cause(self, verdict: HangVerdict | None) -> str:
        """The verdict in one line; without any position, the facts."""
        if verdict and (verdict.waiting or verdict.where or verdict.culprits):
            return verdict.summary
        ranks, job = count(len(self._state.missing), "rank"), self._state.plan.spec.job
        return f"no output and no processor use on all {ranks}; muster why {job} shows where they are"
