"""Executes a launch: starts it, handles the reports until it is over, and ends it on every host."""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_all
from contextlib import contextmanager
from types import FrameType
from typing import Any

from .. import interrupts
from ..connect.channel import Channel
from ..connect.cluster import Cluster, expect_ranks
from ..connect.fanout import in_thread
from ..connect.listener import PING_SECONDS, repeated
from ..connect.pipe import LostError, SilentError
from ..connect.requests import PING, SIGNAL, START, STOP, EndedProcess, Stopping
from ..connect.silence import FROZEN
from ..errors import MusterError
from ..hosts.stuck_processes import StuckProcesses
from ..wire.clock import now
from .cause import Suspension, ended_early, first_of, prefer_lost_network, prefer_silent_host
from .events import Recorded, Stage
from .feature import Attempt, Feature, Features
from .job_record import grace_of_stop
from .report_handlers import ReportHandlers
from .result import Failure, LaunchResult, interruption
from .stages import EndStage

PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


class SignalRelay:
    """SIGUSR1 and SIGUSR2 to this process, until they are passed on to every rank of the job.

    A scheduler that takes hosts away sends such a signal first (sbatch --signal=B:USR1@60). A program that
    handles the signal saves a checkpoint and exits; `muster.train` exits with status 75. The job does not
    start again after that.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._got: list[int] = []
        self.names: list[str] = []
        """Those that were passed on."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals meanwhile; only a process's main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {number: signal.signal(number, self._take) for number in PASSED_ON}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self._got.append(number)  # a handler must not wait for a lock that its thread may hold

    def pass_on(self) -> None:
        """Ask every host to send the signals to its ranks."""
        while self._got:
            name = signal.Signals(self._got.pop(0)).name
            self.names.append(name)
            for channel in self._cluster.channels.values():
                channel.post(SIGNAL, name=name)


START_SECONDS = 30.0
POLL_SECONDS = 0.005
STOP_SECONDS = 15.0
"""For a host to end everything, beyond the grace of the ranks."""
HURRIED_SECONDS = 1.0
"""The grace after a second signal: the whole end has 5 s then (interrupts.py)."""
TURN_SECONDS = 2.0


class LaunchLoop:
    """The loop of an attempt whose files were delivered, and its end on every host."""

    def __init__(self, attempt: Attempt, features: Features) -> None:
        self.attempt, self.features = attempt, features
        self.plan, self.cluster, self.state = attempt.plan, attempt.cluster, attempt.state
        expect_ranks(self.cluster.channels, {placed.rank: placed.host for placed in self.plan.ranks})
        self.handlers = ReportHandlers(self.state, self.cluster, attempt.emit, features.hears)
        self.suspension = Suspension(self.plan.hosts[0].host.name, detached=attempt.folder.detached)
        self.signals = SignalRelay(self.cluster)
        self.began = self._over = now()
        self._silent_at_end: dict[str, SilentError] = {}
        """The hosts that fell silent while the job was ended."""
        self._cleared: frozenset[str] = frozenset()
        self._ended: dict[str, tuple[EndedProcess, ...]] = {}
        self._end_stage: EndStage | None = None
        self._is_hurried = False

    def run(self) -> LaunchResult:
        """Run the launch from its start to its end. Returns its result, also after an interrupt."""
        # Another thread pings: this one may wait for a terminal or a disk that takes no output.
        with repeated(self.cluster.ping_all, PING_SECONDS):
            return self._run()

    def _run(self) -> LaunchResult:
        before, explained = None, None
        try:
            with self.signals.listening():
                self._start()
                self._hear()
            self._over, before = now(), self._first_failure
            explained = self._explain(before)
        except KeyboardInterrupt as interrupt:
            interrupts.taken()
            self._interrupted(interrupt)
        except MusterError as error:
            self.state.failures.append(Failure("launcher", str(error), error.exit_status or 1, at=now()))
        left, failure = self._stop_once(), self._first_failure
        if explained and failure == before:
            failure = explained.failure
        failure = prefer_silent_host(failure, self._silent_at_end)
        return self._result(explained or self._of(failure), failure, left)

    @property
    def _first_failure(self) -> Failure | None:
        first = first_of(self.state.failures, self.plan.hosts[0].host.name)
        channels = self.cluster.channels.items()
        remote = {name: channel.lost for name, channel in channels if channel.remote}
        return self.suspension.explain(prefer_lost_network(first, remote))

    def _of(self, failure: Failure | None) -> LaunchResult:
        return LaunchResult(self.plan, self.began, now(), failure, self.state.ends)

    def _result(
        self, explained: LaunchResult, failure: Failure | None, left: dict[str, StuckProcesses]
    ) -> LaunchResult:
        state = self.state
        return dataclasses.replace(
            explained,
            ended=now(),
            over=self._over,
            failure=failure,
            left=left,
            cleared=self._cleared,
            killed={host: ended for host, ended in self._ended.items() if ended},
            last_line=state.last_line,
            notes=(*explained.notes, *state.all_notes, *self._also_lost(failure), *self._passed_on()),
            warned=bool(self.signals.names),
            launcher_printed=bool(state.launcher_tail),
            early=ended_early(failure, state.ends, state.launcher_tail),
        )

    def _passed_on(self) -> list[str]:
        return [f"{name} was passed on to every rank that handles it" for name in self.signals.names]

    def _also_lost(self, first: Failure | None) -> list[str]:
        """Other hosts that were lost at the same time: a switch, a rack."""
        lost = (each for each in self.state.failures if first and each.kind == first.kind == "host")
        others = dict.fromkeys(each.headline for each in lost if first and each.host != first.host)
        return [f"also lost: {headline}" for headline in others]

    def _start(self) -> None:
        """Start the command of each host that has one. From now on the time for the ranks' start runs."""
        began = self.attempt.timings.now()
        self.state.deadlines.after(self.plan.spec.start_seconds, self._start_is_late)
        self.cluster.ping = self._ping  # agents end a job whose driver is silent
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
        self.attempt.timings.note("start of the launcher", began)

    def _ping(self, channel: Channel) -> None:
        self.suspension.look()
        channel.post(PING)

    def _start_is_late(self) -> None:
        state, seconds = self.state, self.plan.spec.start_seconds
        if not state.all_started and not state.failures:
            reason = f"{state.unstarted} had not started after {seconds:.0f} s"
            state.fail(Failure("start", reason, 3, at=now(), tail=tuple(state.launcher_tail)))

    def _hear(self) -> None:
        """Handle the reports of the hosts until the attempt is over."""
        while not self.state.over:
            self._judge()
            if not self.state.over:
                self._take(min(self.state.deadlines.seconds_left(), TURN_SECONDS))

    def _await(self, future: Future[Any], deadline: float) -> None:
        """Wait until a host has answered, and meanwhile exchange reports and heartbeats with all hosts."""
        while not future.done() and not self.state.over and time.monotonic() < deadline:
            self._judge()
            self._take(POLL_SECONDS)

    def _judge(self) -> None:
        """Do the actions that are due, after handling all reports that have arrived."""
        self.suspension.look()
        if not self.state.over:
            self.features.tell(Feature.turn, self.attempt)
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

    def _explain(self, failure: Failure | None) -> LaunchResult:
        """The result so far, with what features know of it before the job is ended; heartbeats continue."""
        result = self._of(failure)
        future = in_thread(lambda: self.features.revise(Feature.explain, self.attempt, result))
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
        self.attempt.emit(Stage(stage))
        last: dict[str, Stopping | None] = {}
        # A silent agent ends everything on its own, when it can.
        asked = {name: self._ask_to_stop(name, patient) for name in channels if name not in silent}
        running = {*asked}
        while running - silent.keys() and time.monotonic() < began + self._longest(patient):
            self._drain(0.0)  # agents send their reports before they answer
            wait_for_all(asked.values(), 0.05)
            for name in [name for name in running if asked[name].done()]:
                # None: the lifeline is cut there, and its agent ends everything on its own.
                last[name] = stopping = None if asked[name].exception() else asked[name].result()
                before = stage.saving
                if stopping:
                    stage.note(name, stopping)
                if stage.saving != before:
                    self.attempt.emit(Recorded("saving", stage.saving))
                if stopping and not stopping.over:
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
        asked = [grace_of_stop(self.attempt.folder.path), self.state.asked_grace, self.plan.spec.grace]
        grace = next(seconds for seconds in asked if seconds is not None)
        return min(grace, HURRIED_SECONDS) if self._has_to_hurry else grace

    def _drain(self, seconds: float) -> None:
        """Handle the last lines and ends of ranks. Failures that come now are consequences, and dropped."""
        failures = list(self.state.failures)
        if self._take(seconds):
            self.handlers.catch_up()
        self.state.failures = failures
