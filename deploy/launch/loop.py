"""Executes a launch: starts it, handles the reports until it is over, and ends it on every host."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures import wait as wait_for_all
from typing import Any, TypeVar

from .. import interrupts
from ..common.clock import now
from ..connect.channel import Channel
from ..connect.cluster import Cluster, expect_ranks
from ..connect.fanout import in_thread
from ..connect.pipe import LostError, SilentError
from ..connect.reports import Sampled
from ..connect.requests.launch import PING, START, STOP, EndedProcess, Stopping
from ..connect.silence import FROZEN
from ..errors import MusterError
from ..hosts.samples import HostSample
from ..hosts.stuck import StuckProcesses
from ..plan.launch_plan import LaunchPlan
from ..timings import IMPORTS, RENDEZVOUS, Timings
from ..why.gather import gather_begun
from ..why.stall import MANY_COLLECTIVES
from .cause import Suspension, ended_early, first_of, prefer_lost_network, prefer_silent_host
from .diagnosis import Explanation, explained, gather_explanation, needed
from .events import Emit, Event, LauncherOutput, Output, Stage, drop
from .measurements import PaceWatch, SampleCollector
from .rank_io import SignalRelay
from .report_handlers import ReportHandlers
from .result import Failure, LaunchResult, interruption
from .stages import EndStage, StartStage
from .state import LaunchState
from .watchdogs import StallNotes, StallWatchdog, StartWatchdog

START_SECONDS = 30.0
POLL_SECONDS = 0.005
STOP_SECONDS = 15.0
"""For a host to end everything, beyond the grace of the ranks."""
HURRIED_SECONDS = 1.0
"""The grace after a second signal: the whole end has 5 s then (interrupts.py)."""
TURN_SECONDS = 2.0
UNSEEN_SECONDS = 60.0
"""A program without a record of collectives may have made a step by then."""
Answer = TypeVar("Answer")


class LaunchLoop:
    """The loop of a launch whose plan was delivered, and its end on every host."""

    def __init__(
        self,
        plan: LaunchPlan,
        cluster: Cluster,
        emit: Emit = drop,
        *,
        timings: Timings | None = None,
        detached: bool = False,
        on_turn: Callable[[], object] = lambda: None,
        asked_grace: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`detached`: whether the driver runs on the head. `on_turn`: called at least every 2 s.

        `asked_grace`: the grace of a `muster stop` on this machine, if it has given one.
        """
        self._on_turn, self._pass_on, self._asked_grace = on_turn, emit, asked_grace
        self._timings = timings or Timings()
        self.plan, self.cluster = plan, cluster
        self.state = LaunchState(plan, emit)
        expect_ranks(cluster.channels, {placed.rank: placed.host for placed in plan.ranks})
        self._stall = StallWatchdog(self.state, plan.spec.stall_timeout or math.inf)
        self._stalls = StallNotes(self.state, cluster, plan.spec.stall_note)
        self.handlers = ReportHandlers(self.state, cluster, self._emit, self._stall)
        self.suspension = Suspension(plan.hosts[0].host.name, detached=detached)
        self.signals = SignalRelay(cluster)
        self.began = self._over = now()
        self._pulse = plan.spec.stall_timeout > 0
        self._silent_at_end: dict[str, SilentError] = {}
        """The hosts that fell silent while the job was ended."""
        self._cleared: frozenset[str] = frozenset()
        self._ended: dict[str, tuple[EndedProcess, ...]] = {}
        self._end_stage: EndStage | None = None
        self._is_hurried = False
        self._samples = SampleCollector(self.state, cluster, self._emit)
        self.handlers.also(Sampled, self._samples.take)
        self._pace = (
            PaceWatch(self.state, cluster, self._samples.newest, self._stalls, emit, on_set_up=self._set_up)
            if plan.spec.record
            else None
        )

    def _emit(self, event: Event) -> None:
        """Pass an event on, after the watchdogs of stalls have seen it."""
        if isinstance(event, Output) or (isinstance(event, LauncherOutput) and event.spawned):
            self._stalls.printed(event.text)
        elif isinstance(event, HostSample):
            self._stalls.sampled(event)
            self._stall.sampled(event)
        self._pass_on(event)

    def run(self) -> LaunchResult:
        """Run the launch from its start to its end. Returns its result, also after an interrupt."""
        state, explanation, stepped = self.state, None, True
        try:
            with self.signals.listening():
                self._start()
                while not state.over:
                    self._judge()
                    if not state.over:
                        self._take(min(state.deadlines.seconds_left(), TURN_SECONDS))
            self._over = now()
            if self._pace and not self.state.failures:
                self._pace.end()
            failure = self._first_failure
            if failure and needed(failure, self.plan.spec):
                explanation = self._look(failure)
            if failure and self.plan.spec.may_restart:
                stepped = self._stepped(failure)
        except KeyboardInterrupt as interrupt:
            interrupts.taken()
            self._interrupted(interrupt)
        except MusterError as error:
            state.failures.append(Failure("launcher", str(error), error.exit_status or 1, at=now()))
        return dataclasses.replace(self._result(explanation, self._stop_once()), stepped=stepped)

    @property
    def _first_failure(self) -> Failure | None:
        first = first_of(self.state.failures, self.plan.hosts[0].host.name)
        channels = self.cluster.channels.items()
        remote = {name: channel.lost for name, channel in channels if channel.remote}
        return self.suspension.explain(prefer_lost_network(first, remote))

    def _result(self, explanation: Explanation | None, left: dict[str, StuckProcesses]) -> LaunchResult:
        failure = prefer_silent_host(self._first_failure, self._silent_at_end)
        notes = (
            *self.state.all_notes,
            *self._also_lost(failure),
            *self._passed_on(),
            *self._samples.notes,
            *self._stalled(failure),
        )
        return LaunchResult(
            plan=self.plan,
            started=self.began,
            ended=now(),
            over=self._over,
            failure=explained(failure, explanation, self.state) if failure and explanation else failure,
            ends=self.state.ends,
            left=left,
            cleared=self._cleared,
            killed={host: ended for host, ended in self._ended.items() if ended},
            last_line=self.state.last_line,
            notes=notes,
            warned=bool(self.signals.names),
            stacks=str(explanation.stacks) if explanation else "",
            why=explanation.why if explanation else None,
            launcher_printed=bool(self.state.launcher_tail),
            early=ended_early(failure, self.state.ends, self.state.launcher_tail),
            late=tuple(self._pace.summary.late) if self._pace else (),
        )

    def _stalled(self, failure: Failure | None) -> list[str]:
        """The stall in which the job ended, unless that is the failure itself."""
        note = "" if failure is None or failure.kind == "stall" else self._stalls.note
        return [note] if note else []

    def _passed_on(self) -> list[str]:
        return [f"{name} was passed on to every rank that handles it" for name in self.signals.names]

    def _also_lost(self, first: Failure | None) -> list[str]:
        """Other hosts that were lost at the same time: a switch, a rack."""
        lost = [
            failure
            for failure in self.state.failures
            if failure.kind == "host" and first and first.kind == "host"
        ]
        others = {failure.headline: None for failure in lost if first and failure.host != first.host}
        return [f"also lost: {headline}" for headline in others]

    def _start(self) -> None:
        """Start the command of each host that has one. From now on the time for the ranks' start runs."""
        began = self._timings.now()
        self._emit(Stage(StartStage(self.state, self._samples.newest)))
        StartWatchdog(self.state, self.plan.spec.start_timeout, self._samples.newest)
        # A heartbeat: agents end a job whose driver is silent. They also report the pulses of their ranks.
        self.cluster.ping = lambda channel: channel.post(PING, pulse=self._pulse)
        self.cluster.ping_all()
        starts = {
            host.host.name: self.cluster.channels[host.host.name].post(START, argv=host.command)
            for host in self.plan.hosts
            if host.command
        }
        deadline = time.monotonic() + START_SECONDS
        for name, future in starts.items():
            self._await(future, deadline)
            if self.state.over:
                return
            if not future.done():
                self.cluster.channels[name].give_up()
                raise LostError(f"no answer within {START_SECONDS:.0f} s", FROZEN, host=name)
            future.result()
            self.state.phases[name] = f"{self.plan.spec.launcher} started"
        self._timings.note("start of the launcher", began)
        self._samples.begin()
        self._stalls.begin()
        if self._pace:
            self._pace.begin()

    def _set_up(self, times: Mapping[int, tuple[float, float]]) -> None:
        """Note how long the ranks took until they had met, by the last one."""
        last, met = (max(ends) for ends in zip(*times.values(), strict=True))
        if self.state.began is not None:
            self._timings.note_at(IMPORTS, self.state.began, last)
        self._timings.note_at(RENDEZVOUS, last, met)

    def _await(self, future: Future[Any], deadline: float) -> None:
        """Wait until a host has answered, and meanwhile exchange reports and heartbeats with all hosts."""
        while not future.done() and not self.state.over and time.monotonic() < deadline:
            self._judge()
            self._take(POLL_SECONDS)

    def _judge(self) -> None:
        """Do the actions that are due, after handling all reports that have arrived."""
        self.suspension.look()
        self._on_turn()
        self.signals.pass_on()
        if self.state.deadlines.are_due():
            self.handlers.catch_up()
            self.state.deadlines.do_what_is_due()

    def _take(self, seconds: float) -> bool:
        """Handle the next event, if one comes in this time."""
        event = self.cluster.hear(seconds)
        self.suspension.look()
        if event is None:
            return False
        self.handlers.take(event.host, event.report)
        return True

    def _look(self, failure: Failure) -> Explanation:
        """Ask where all ranks are, before the job is ended."""
        self._emit(Stage("asking every rank where it is"))
        answering = self._answering
        return self._meanwhile(lambda: gather_explanation(failure, self.state, self.cluster, answering))

    def _stepped(self, failure: Failure) -> bool:
        """Whether the program may have made a step. Where no collective is recorded, only time tells."""
        if self._stalls.stepped or failure.kind not in {"rank", "launcher"}:
            return True
        channels, job = self._answering, self.plan.spec.job
        begun = self._meanwhile(lambda: gather_begun(job, channels))
        return max(begun.values(), default=0) >= MANY_COLLECTIVES or (
            not begun and now() - self.began > UNSEEN_SECONDS
        )

    @property
    def _answering(self) -> dict[str, Channel]:
        silent = self.cluster.silent
        return {name: channel for name, channel in self.cluster.channels.items() if name not in silent}

    def _meanwhile(self, ask: Callable[[], Answer]) -> Answer:
        """The result of this call in a thread, while heartbeats continue."""
        future = in_thread(ask)
        while not future.done():
            self._judge()
            self._drain(0.01)
        return future.result()

    def _stop_once(self) -> dict[str, StuckProcesses]:
        """Run `_stop`, and run it again if it is interrupted."""
        failures = list(self.state.failures)
        try:
            return self._stop()
        except KeyboardInterrupt as interrupt:
            interrupts.taken()
            self._is_hurried = True
            self.state.failures = failures
            if failures:
                self._interrupted(interrupt)
            return self._stop()

    def _interrupted(self, interrupt: KeyboardInterrupt) -> None:
        """Make the interrupt the failure of the job. An earlier one stays, unless the job may restart."""
        first = self._first_failure
        if first is None or self.plan.spec.may_restart:
            self.state.failures = [interruption(interrupt, now())]
            if first:
                self.state.notes.append(f"before that: {first.headline}")

    def _stop(self) -> dict[str, StuckProcesses]:
        """End the job on every host; returns the processes that could not be ended, where there are any.

        A host ends it in steps, each for one request. After a job without a failure it first waits for what
        ranks have left behind.
        """
        patient = not self.state.failures
        channels, silent, began = self.cluster.channels, self.cluster.silent, time.monotonic()
        stage = self._end_stage = self._end_stage or EndStage(self.state, len(channels))
        self._emit(Stage(stage))
        last: dict[str, Stopping | None] = {}
        # A silent agent ends everything on its own, when it can.
        asked = {name: self._ask_to_stop(name, patient) for name in channels if name not in silent}
        running = {*asked}
        while running - silent.keys() and time.monotonic() < began + self._longest(patient):
            self._drain(0.0)  # agents send their reports before they answer
            wait_for_all(asked.values(), 0.05)
            for name in [name for name in running if asked[name].done()]:
                last[name] = stopping = _answer(asked[name])
                if stopping and not stopping.over:
                    stage.note(name, stopping)
                    asked[name] = self._ask_to_stop(name, patient)
                else:
                    running.discard(name)
        self._drain(0.0)
        self._silent_at_end = {name: silent[name] for name in sorted(asked.keys() & silent.keys())}
        over = {name: stopping for name, stopping in last.items() if stopping and stopping.over}
        self._ended = {name: stopping.ended for name, stopping in over.items()}
        self._cleared = frozenset(name for name, stopping in over.items() if not stopping.left)
        return {name: stopping.left for name, stopping in over.items() if stopping.left}

    def _ask_to_stop(self, name: str, patient: bool) -> Future[Stopping]:
        patience = self._grace if patient and not self._has_to_hurry else 0.0
        return self.cluster.channels[name].post(STOP, grace=self._grace, patience=patience)

    def _longest(self, patient: bool) -> float:
        return self._grace * (2 if patient else 1) + STOP_SECONDS

    @property
    def _has_to_hurry(self) -> bool:
        return self._is_hurried or interrupts.hurried()

    @property
    def _grace(self) -> float:
        """Seconds that a rank has for SIGTERM."""
        asked = [self._asked_grace(), self.state.asked_grace, self.plan.spec.grace]
        grace = next(seconds for seconds in asked if seconds is not None)
        return min(grace, HURRIED_SECONDS) if self._has_to_hurry else grace

    def _drain(self, seconds: float) -> None:
        """Handle the last lines and ends of ranks. Failures that come now are consequences, and dropped."""
        failures = list(self.state.failures)
        if self._take(seconds):
            self.handlers.catch_up()
        self.state.failures = failures


def _answer(future: Future[Stopping]) -> Stopping | None:
    try:
        return future.result(0.0)
    except (MusterError, TimeoutError, FutureTimeoutError):
        return None  # the lifeline is cut there: its agent ends everything on its own
