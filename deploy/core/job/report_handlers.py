"""Handles the reports of hosts about a running launch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..connect.channel import DISTRUST
from ..connect.cluster import Cluster
from ..connect.pipe import SilentError, why_lost
from ..connect.reports import (
    CommandEnd,
    DaemonEnd,
    LauncherLine,
    LogEnded,
    Lost,
    OutOfMemory,
    ProgramOver,
    RankEnded,
    RankOutput,
    RankStart,
    Report,
    ShellAsked,
    ShellEnd,
    StopAsked,
)
from ..connect.requests import SHELL, SHELL_END
from ..plan.openmpi import starts_daemon
from ..text.terminal import harmless, without_colours
from ..text.text import describe_code, status_of
from ..wire.clock import now
from . import result
from .events import Emit, LauncherOutput, Output, Reported
from .result import TERMINATED, Failure, alone, describe_out_of_memory, stopped
from .state import EndedButAlive, ImpossibleReport, LaunchState

# When the launcher has ended, reports of ranks on other hosts may still be under way.
LATE_SECONDS = 2.0
# Open MPI 5.0 may hang at its exit when all ranks have ended well (ompi#12064); the job is done by then.
LAUNCHER_EXIT_SECONDS = 10.0


class ReportHandlers:
    """Handles the events of all hosts, one at a time."""

    def __init__(
        self,
        state: LaunchState,
        cluster: Cluster,
        emit: Emit,
        others: Collection[type[Report]] = (),
    ) -> None:
        """`others`: the kinds of reports that are passed on as events."""
        self.state, self.cluster, self._emit = state, cluster, emit
        self._handlers: Mapping[type[Report], Callable[[str, Any], None]] = {
            RankStart: self._rank_start,
            RankOutput: self._output,
            LogEnded: self._log_ended,
            ProgramOver: self._program_over,
            RankEnded: self._rank_end,
            LauncherLine: self._launcher,
            CommandEnd: self._command_end,
            ShellAsked: self._shell,
            ShellEnd: self._shell_end,
            DaemonEnd: self._daemon_end,
            Lost: self._host_lost,
            StopAsked: self._stop_asked,
            **dict.fromkeys(others, self._pass_on),
        }

    def take(self, host: str, report: Report) -> None:
        """Handle an event. A report that cannot be true is a failure of its host."""
        try:
            if type(report) not in self._handlers:
                raise ImpossibleReport("an unexpected report")
            self._handlers[type(report)](host, report)
        except ImpossibleReport as error:
            reason = f"protocol error: {error}; {DISTRUST}"
            self.state.fail(Failure("host", reason, 3, host=host, at=now()))

    def catch_up(self) -> None:
        """Handle all waiting events. To be called before a deadline is judged: the driver may be behind."""
        for _ in range(len(self.cluster.events)):  # not more than these, because ranks may print forever
            event = self.cluster.events.get()
            self.take(event.host, event.report)

    def _pass_on(self, host: str, report: Report) -> None:
        self._emit(Reported(host, report))

    # -- ranks --

    def _rank_start(self, host: str, report: RankStart) -> None:
        rank, ranks = report.rank, self.state.placed
        planned = ranks.get(rank)
        actual = (host, report.local_rank, report.world_size)
        if planned is None or actual != (planned.host, planned.local_rank, len(ranks)):
            expected = f"local rank {planned.local_rank} on {planned.host}" if planned else "no such rank"
            reason = (
                f"it started as local rank {actual[1]} on {host} in a world of {actual[2]}; "
                f"planned: {expected} in a world of {len(ranks)}"
            )
            self.state.fail(Failure("placement", reason, 1, host=host, rank=rank, at=now(), final=True))
        self.state.rank_started(rank, host)

    def _output(self, host: str, report: RankOutput) -> None:
        rank, text = report.rank, report.text
        self.state.require_own(host, rank)  # it becomes a part of a path on this machine
        if rank == 0 and report.stream == "out" and (last_line := text.rstrip().rpartition("\n")[2]):
            self.state.last_line = last_line.rpartition("\r")[2]
        self._emit(Output(rank, host, report.stream, text))

    def _log_ended(self, host: str, report: LogEnded) -> None:
        self.state.require_own(host, report.rank)
        self.state.log_ended(host, report.rank, harmless(report.why))

    def _program_over(self, host: str, report: ProgramOver) -> None:
        self.state.require_own(host, report.rank)
        placed, at = self.state.placed[report.rank], self._when(host, report.time)
        self.state.program_over(EndedButAlive(placed, at, report))

    def _rank_end(self, host: str, report: RankEnded) -> None:
        rank = report.rank
        self.state.require_own(host, rank)
        if rank in self.state.ends:
            return
        at, why = self._when(host, report.time), _why(report.out_of_memory)
        placed = self.state.placed[rank]
        tail = tuple(map(without_colours, report.tail))  # hints search it for messages of programs
        end = result.RankExit(placed, report.code, at, tail, why, report.found, terminated=report.terminated)
        self.state.rank_ended(end)
        over = self.state.ended_but_alive.get(rank)
        if report.code != 0:
            self.state.fail(end.as_failure())
        elif over and over.failed:  # a thread or an exit function called os._exit(0)
            self.state.fail(over.as_failure())
        elif report.alone:
            self.state.fail(alone(end, self.state.plan))
        elif not self.state.missing:
            self.state.deadlines.after(LAUNCHER_EXIT_SECONDS, self._launcher_stays)
        self._check_done()

    # -- launchers --

    def _launcher(self, host: str, report: LauncherLine) -> None:
        self.state.launcher_printed(report.text)
        self._emit(LauncherOutput(host, report.text))

    def _command_end(self, host: str, report: CommandEnd) -> None:
        codes = self.state.launcher_codes
        if host not in self.state.commands:
            raise ImpossibleReport("the end of a launcher that was not started there")
        codes[host] = report.code
        if report.code < 0:  # it was killed: failures of ranks are now a consequence
            why = f": {why}" if (why := _why(report.out_of_memory)) else ""
            self._launcher_failed(host, report.code, why, self._when(host, report.time))
        elif report.code != 0 or codes.keys() == self.state.commands:
            self.state.deadlines.after(LATE_SECONDS, self._ranks_are_missing)
        self._check_done()

    def _shell(self, host: str, report: ShellAsked) -> None:
        """Start mpirun's daemon on a host: the head may ask once for each host, and for nothing else."""
        plan, daemons = self.state.plan, self.state.daemons
        if plan.spec.launcher != "mpirun" or host != plan.hosts[0].host.name:
            raise ImpossibleReport("only mpirun on the head starts anything elsewhere")
        target, reason = self.cluster.channels.get(report.host), ""
        if target is None:
            reason = f"mpirun asked for {report.host}, which is not a host of this job"
        elif report.host in daemons:
            reason = f"mpirun asked for a second daemon on {report.host}"
        elif not starts_daemon(report.command):
            command = report.command[:200]
            reason = f"mpirun's command for {report.host} does more than start its daemon: {command}"
        if target is None or reason:
            self.state.fail(Failure("launcher", reason, 1, host=host, at=now()))
            return
        daemons[report.host] = report.number
        self.state.phases[report.host] = "mpirun's daemon asked for"
        target.post(SHELL, number=report.number, command=report.command)

    def _shell_end(self, host: str, report: ShellEnd) -> None:
        if host not in self.state.daemons:
            raise ImpossibleReport("an exit report of an unknown daemon")
        if report.code != 0:
            self._daemon_end(host, DaemonEnd("mpirun's daemon", report.code, report.time))
        self.state.phases[host] = "mpirun's daemon up"  # the daemon outlives its shell
        head = self.cluster.channels[self.state.plan.hosts[0].host.name]
        head.post(SHELL_END, number=self.state.daemons[host], code=report.code)

    def _daemon_end(self, host: str, report: DaemonEnd) -> None:
        """Open MPI's daemon on a host was killed. Failures of its ranks are now a consequence."""
        at = self._when(host, report.time)
        self._blame_launcher(host, f"{report.name} ended with", report.code, "", at)

    def _host_lost(self, host: str, report: Lost) -> None:
        reason = why_lost(report.reason)
        if isinstance(report.reason, SilentError) and report.reason.together:
            self.state.fail(Failure("network", reason, 1, at=now()))  # no host is the cause
        else:
            self.state.fail(Failure("host", reason, 3, host=host, at=now()))

    def _stop_asked(self, host: str, report: StopAsked) -> None:
        """`fab stop` was run on another machine than the driver's: the job ends like after a SIGTERM here.

        It reached the agent of the head, which has the job's record.
        """
        if host != self.state.plan.hosts[0].host.name:
            raise ImpossibleReport("it says that somebody stops the job, which only the head can know")
        if not self.state.over:
            by = f"{harmless(report.by)}, through {host}"
            self.state.asked_grace = report.grace
            self.state.failures = [stopped(by, TERMINATED, now())]
            self.state.finish()

    # -- what follows --

    def _check_done(self) -> None:
        """Finish the launch when every rank has ended with 0 and every launcher command has ended."""
        state = self.state
        if state.failures or state.missing or state.launcher_codes.keys() != state.commands:
            return
        for host, code in state.launcher_codes.items():
            if code != 0:
                self._launcher_failed(host, code, " though every rank ended with status 0")
        if not state.failures:
            state.finish()

    def _ranks_are_missing(self) -> None:
        state = self.state
        if not state.missing or state.failures:
            return
        host, code = max(state.launcher_codes.items(), key=lambda item: item[1] != 0)
        unstarted = [rank for rank in state.missing if rank not in state.started]
        awaited = (
            f"a start of {state.name(unstarted)}" if unstarted else f"an end of {state.name(state.missing)}"
        )
        self._launcher_failed(host, code, f" without {awaited}")

    def _launcher_failed(self, host: str, code: int, circumstance: str, at: float | None = None) -> None:
        what = f"{self.state.plan.spec.launcher} ended with"
        self._blame_launcher(host, what, code, circumstance, now() if at is None else at)

    def _blame_launcher(self, host: str, what: str, code: int, circumstance: str, at: float) -> None:
        reason = f"{what} {describe_code(code)}{circumstance}"
        tail = tuple(self.state.launcher_tail)
        failure = Failure("launcher", reason, status_of(code) or 1, host=host, at=at, tail=tail)
        self.state.fail(failure)

    def _when(self, host: str, at: float) -> float:
        """Convert a time of a host's steady clock to the driver's clock."""
        return at + self.cluster.channels[host].clock_offset

    def _launcher_stays(self) -> None:
        if self.state.over or self.state.failures:
            return
        launcher = self.state.plan.spec.launcher
        self.state.notes.append(
            f"{launcher} still ran {LAUNCHER_EXIT_SECONDS:.0f} s after all ranks had ended"
        )
        self.state.finish()


def _why(killed: OutOfMemory | None) -> str:
    """The host's reason for an end: out of memory, or empty."""
    return describe_out_of_memory(killed.limit) if killed else ""
