"""Runs a job, attempt after attempt. Each connects to hosts, makes a plan and executes it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence

from ..connect.channel import Channel
from ..connect.cluster import Cluster
from ..connect.kept_connections import KeptConnections
from ..connect.pipe import OpenPipe
from ..errors import MusterError, UnfitError
from ..hosts.hostfile import Host
from ..plan.launch_plan import LaunchPlan, about_changed, about_vanished
from ..plan.launcher import place_ranks
from ..plan.spec import LaunchSpec
from ..text.progress import Text
from ..text.text import count
from ..timings import NOTICE, OLD_RANKS, PAUSE, Timings
from ..waits import with_hosts
from ..wire.clock import now
from . import restart_policy as restart
from .attempt_record import launched
from .deliver import Contents, deliver, prepare_for
from .events import Event, JobEvent, JobHistory, Output, Recorded, Said, Stage, Waiting
from .feature import Attempt, Feature, Features, Start
from .loop import LaunchLoop
from .planning import make_plan
from .restart_policy import Decision, Policy
from .result import Failure, LaunchResult, interruption
from .run_folder import RunFolder
from .stages import DeliveryStage
from .state import LaunchState
from .verdict import verdict


class Job:
    """Runs the attempts of a job, shows its progress and keeps its records."""

    def __init__(
        self,
        spec: LaunchSpec,
        open_pipe: OpenPipe,
        folder: RunFolder,
        features: Features | None = None,
        timings: Timings | None = None,
    ) -> None:
        self._timings = timings or Timings()
        self.spec, self.folder, self._open_pipe = spec, folder, open_pipe
        self.features = features or Features()
        self._history = JobHistory(spec.job, self._pass_on)
        self._policy = Policy(spec.max_restarts, spec.min_hosts, hosts=spec.hosts)
        self._results: list[LaunchResult] = []
        self._announced: LaunchPlan | None = None
        self._again = False
        self._head: Channel | None = None
        self._kept: KeptConnections | None = None

    def run(self) -> LaunchResult:
        """Returns the result of the last attempt; raises the error that kept the first one from starting.

        After an attempt was announced, it always returns a result.
        """
        hosts = tuple(self.spec.hosts)
        try:
            while hosts:
                hosts = self._attempt(hosts, len(self._results))
        except (MusterError, KeyboardInterrupt) as error:
            if not self._results and not self._announced:
                raise
            self._give_up(error)
        finally:
            self._let_go()
        try:
            return self._finish(self._results[-1])
        except KeyboardInterrupt:  # the job is over: write its result anyway
            return self._finish(self._results[-1])

    def _attempt(self, hosts: tuple[Host, ...], attempt: int) -> tuple[Host, ...]:
        """Make an attempt; returns the hosts of the next one, none for no attempt."""
        kept = self._kept
        try:
            start = self._place(hosts, attempt)
            code = (Contents(start.spec.tree), Contents(start.spec.library))
            with self._connect(start, code) as cluster:
                self._let_go()  # hosts that this attempt does not need
                the_plan = self._plan(start, cluster)
                self._deliver(the_plan, cluster, code, start.timings)
                self._execute(the_plan, cluster, start.timings, hosts)
                self._keep(cluster)
        except UnfitError as error:
            if not attempt:
                raise
            return self._without(dict(error.reasons), hosts, attempt, kept)
        return self._after(hosts, attempt)

    def _place(self, hosts: tuple[Host, ...], attempt: int) -> Start:
        """Choose the host of each rank."""
        spec = self.spec.for_attempt(hosts, attempt)
        timings = self._recovery(self._results[-1]) if attempt else self._timings
        return Start(spec, place_ranks(hosts, spec), self._emit, timings)

    def _connect(self, start: Start, code: Sequence[Contents]) -> Cluster:
        """Connect to the hosts, and ask each at once for what the next steps need."""

        def greet(channel: Channel) -> None:
            self.features.require(Feature.greet, channel)
            prepare_for(code, channel)

        self._stage(with_hosts("connecting"))
        return Cluster(
            start.placement.connected,
            self._open_pipe,
            timings=start.timings,
            greet=greet,
            network=start.spec.network,
            kept=self._kept,
        )

    def _plan(self, start: Start, cluster: Cluster) -> LaunchPlan:
        """Let the features prepare the hosts, make the plan, and say it."""
        the_plan = make_plan(start, cluster, self.features)
        for line in (the_plan.title, *(f"note: {note}" for note in the_plan.notes)):
            self._say(line)
        return the_plan

    def _deliver(
        self, the_plan: LaunchPlan, cluster: Cluster, code: Sequence[Contents], timings: Timings
    ) -> None:
        """Make the job's folder on every host, and let the features start there what the ranks need."""
        with timings.part("delivery"):
            self._stage(stage := DeliveryStage())
            deliver(the_plan, cluster, code, stage)
            self.features.require(Feature.delivered, the_plan, cluster)
        if more := code[0].tree.vanished[len(the_plan.spec.tree.vanished) :]:
            self._say(f"note: {about_vanished(more)}")
        if changed := [*code[0].edits.changed]:
            self._say(f"note: {about_changed(changed)}")

    def _without(
        self, unfit: Mapping[str, str], hosts: tuple[Host, ...], attempt: int, kept: KeptConnections | None
    ) -> tuple[Host, ...]:
        """The hosts of the next attempt, after these hosts could not be used for a restart."""
        if kept and not kept.taken.isdisjoint(unfit):
            return hosts  # all of them are connected again now
        failure = self._results[-1].failure
        if restart.awaits_network(failure, unfit, now()) or self._policy.awaits(hosts, unfit, now()):
            self._say(f"{count(len(unfit), 'host')} cannot be reached; trying again")
            time.sleep(restart.RETRY_SECONDS)
            return hosts
        return self._next(restart.without(unfit, hosts, attempt - 1, self._policy, now()), attempt - 1)

    def _after(self, hosts: tuple[Host, ...], attempt: int) -> tuple[Host, ...]:
        """The hosts of the next attempt, after the end of this one."""
        result = self._results[-1]
        if result.warned:
            return ()
        connected = self._kept.channels if self._kept else ()
        hosts, self._policy = restart.with_returned(hosts, connected, self._policy)
        return self._next(restart.after(result, hosts, attempt, self._policy, now()), attempt)

    @staticmethod
    def _recovery(last: LaunchResult) -> Timings:
        """The clock of a restart, which begins with the failure before."""
        failed = last.failure.at if last.failure else last.ended
        timings = Timings(since=failed)
        timings.note_at(NOTICE, failed, last.over)
        timings.note_at(OLD_RANKS, last.over, last.ended)
        timings.note_at(PAUSE, last.ended, now())
        return timings

    def _keep(self, cluster: Cluster) -> None:
        """Keep hosts where nothing of this attempt is left, with their files and locks, for the next one."""
        if self.spec.may_restart and (result := self._results[-1]).failure:
            self._kept = cluster.hand_over(result.cleared)

    def _let_go(self) -> None:
        """Close the connections that no attempt has taken over."""
        if self._kept:
            self._kept.close()
            self._kept = None

    def _execute(
        self, the_plan: LaunchPlan, cluster: Cluster, timings: Timings, hosts: Sequence[Host]
    ) -> None:
        head = self._head = cluster.channels[the_plan.hosts[0].host.name]
        self._stage(f"starting {the_plan.spec.launcher}")
        began = self._results[0].started if self._results else now()
        state = LaunchState(the_plan, self._emit)
        away = self._policy.away - {host.name for host in hosts}
        attempt = Attempt(the_plan, cluster, self.folder, self._emit, state, timings, began, away)
        # Once job.json exists, somebody may stop the job, and expects a result.
        announced, self._announced = self._announced, the_plan
        try:
            self.folder.begin(the_plan, self._policy.left_out)
            for name in {each.plan.hosts[0].host.name for each in self._results} & cluster.channels.keys():
                self.folder.record_on(cluster.channels[name], "job.json", self.folder.record)  # no head now
            self.folder.record_on(head, "job.json", self.folder.record)
            self.features.tell(Feature.begins, attempt)
        except MusterError:
            self._announced = announced
            raise
        cluster.drop_reports()
        self._history.began(the_plan)
        self.folder.keep_launched(launched(the_plan, cluster.facts))
        result = LaunchLoop(attempt, self.features).run()
        self._again = False
        self._results.append(result)  # from now on, no error or interrupt may cost the verdict
        result = self.features.revise(Feature.cause, attempt, result)
        again = restart.after(result, hosts, the_plan.spec.attempt, self._policy, now()).hosts
        if not result.warned:
            attempt = dataclasses.replace(attempt, next_hosts=frozenset(host.name for host in again))
        result = self.features.revise(Feature.ended, attempt, result)
        result = dataclasses.replace(self.folder.ended(result), timings=timings.parts())
        self._results[-1] = result
        self._history.ended(result)
        # First: files may take minutes.
        self.folder.record_on(head, "result.json", result.as_json(), wait=True)
        self.features.tell(Feature.fetch, attempt)
        self._stage("")

    def _next(self, decision: Decision, attempt: int) -> tuple[Host, ...]:
        self._again, self._policy = decision.again, decision.policy  # an interrupt may follow at once
        if decision.message and not decision.again:  # the verdict follows, and has it as a note
            last = self._results[-1]
            self._results[-1] = dataclasses.replace(last, notes=(*last.notes, decision.message))
        if decision.again:
            self._say(decision.message)
            self._history.restarted(decision.message, [host.name for host in decision.hosts])
            self._stage("waiting before the next start")
            time.sleep(restart.pause(self._results[-1], decision.hosts, attempt))
        return decision.hosts

    def _give_up(self, error: MusterError | KeyboardInterrupt) -> None:
        """Make a result after an error outside of the loop: in an announced attempt, or before a restart.

        An interrupt before a restart ends the job, and the failure before it becomes a note. An interrupt of
        a job that is over changes nothing.
        """
        if not self._results and self._announced:
            self._results.append(self.folder.ended(_without_end(self._announced, error)))
            return
        if isinstance(error, KeyboardInterrupt) and not self._again:
            return
        last = self._results[-1]
        note = f"no restart: {'interrupted' if isinstance(error, KeyboardInterrupt) else error}"
        if isinstance(error, KeyboardInterrupt) and last.failure:
            note = f"it was about to start again after this: {last.failure.headline}"
            last = dataclasses.replace(last, failure=interruption(error, now()), ended=now())
            last = self.folder.ended(last)
        self._say(note)
        self._results[-1] = dataclasses.replace(last, notes=(*last.notes, note))

    def _finish(self, result: LaunchResult) -> LaunchResult:
        """Write the result. If that fails, it gets a note: the end of the ranks is still the result."""
        earlier = tuple(self._results[:-1])
        result = dataclasses.replace(result, earlier=earlier, left_out=self._policy.left_out)
        result = self.features.over(result, self.folder.keep)
        if self.folder.problem:
            result = dataclasses.replace(result, notes=(*result.notes, self.folder.problem))
        self._history.verdict(result)
        if why := self.folder.finish(result, verdict(result, self.folder)):
            ended = "" if result.failure else "every rank ended with 0; "
            note = f"{ended}the result could not be written here: {why}"
            result = dataclasses.replace(result, notes=(*result.notes, note))
        return result

    def _emit(self, event: Event) -> None:
        """Pass an event on. The history completes those that are recorded."""
        if isinstance(event, Output):
            self._history.output(event)
        if isinstance(event, Waiting):
            self._wait(event)
        elif isinstance(event, JobEvent):
            self._history.add(event)
        else:
            self._pass_on(event)
        if isinstance(event, Recorded) and self._head:
            self.folder.record_on(self._head, "job.json", self.folder.record)

    def _pass_on(self, event: Event) -> None:
        self.folder.on_event(event)
        self.features.tell(Feature.on_event, event)

    def _wait(self, event: Waiting) -> None:
        """Print why the job waits. A job that starts again is already listed as running."""
        if not self._announced:
            self._pass_on(event)
        self._say(event.why)

    def _say(self, text: str) -> None:
        self._pass_on(Said(text))

    def _stage(self, show: Text) -> None:
        self._pass_on(Stage(show))


def _without_end(announced: LaunchPlan, error: MusterError | KeyboardInterrupt) -> LaunchResult:
    """The result of an attempt that ended before it could be watched."""
    at = now()
    if isinstance(error, KeyboardInterrupt):
        failure = interruption(error, at)
    else:
        failure = Failure("launcher", str(error), error.exit_status or 1, at=at)
    return LaunchResult(plan=announced, started=at, ended=at, failure=failure, ends={})
