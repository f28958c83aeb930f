"""The state of a running launch: its deadlines, the phase of each rank, and its failures so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby

from ..connect.reports import ProgramOver
from ..decode import lazy_dataclass
from ..errors import MusterError
from ..plan.launch_plan import LaunchPlan, PlacedRank
from ..text.terminal import harmless
from ..text.text import span
from ..wire.clock import now
from .events import Emit, JobEvent, Said, of_failure
from .result import Failure, RankExit

Action = Callable[[], None]


class Deadlines:
    """Actions and the times when they are due. An action that is set already keeps its time."""

    def __init__(self) -> None:
        self._due: dict[Action, float] = {}

    def after(self, seconds: float, action: Action) -> None:
        self._due.setdefault(action, time.monotonic() + seconds)

    def are_due(self) -> bool:
        return self.seconds_left() <= 0

    def do_what_is_due(self) -> None:
        now = time.monotonic()
        for action in [action for action, due in self._due.items() if due <= now]:
            del self._due[action]
            action()

    def seconds_left(self) -> float:
        """Seconds until the next action is due; an hour if there is no action."""
        return max(0.0, min(self._due.values(), default=time.monotonic() + 3600.0) - time.monotonic())


SHOWN_SECONDS = 3.0
"""From an exception to the line about it: by then ranks that fail have ended, also on a busy machine."""
LATE_SECONDS = 10.0
"""The driver ends a rank this long after the rank should have ended itself: its interpreter may hang."""


@lazy_dataclass(frozen=True)
class EndedButAlive:
    """A rank whose program is over while its process lives: a thread or a child keeps it alive.

    `at`: on the driver's clock.
    """

    placed: PlacedRank
    at: float
    report: ProgramOver

    @property
    def failed(self) -> bool:
        """Whether an exception ended its program."""
        return bool(self.report.error)

    @property
    def sentence(self) -> str:
        """`rank 1 (node2): ValueError: boom; its process is kept alive by thread 'writer' ...`."""
        report, alive = self.report, self._alive
        who, seconds = f"rank {self.placed.rank} ({self.placed.host})", f"{self.report.ends_in:.0f} s"
        if not self.failed:
            return f"{who}: {self.reason}"
        if report.ended:
            return f"{who}: its process was kept alive by {alive}, and ended {seconds} after the exception"
        return f"{who}: {self.error}; its process is kept alive by {alive}; Muster ends it after {seconds}"

    @property
    def reason(self) -> str:
        """The same without the rank, for a stalled job."""
        return f"its program is over, but its process is kept alive by {self._alive}"

    @property
    def _alive(self) -> str:
        return harmless(", ".join(self.report.alive))

    @property
    def error(self) -> str:
        """`ValueError: boom`."""
        return harmless(self.report.error[-1])[:400] if self.report.error else ""

    def as_failure(self) -> Failure:
        """The exception as the reason of a failed launch."""
        placed, tail = self.placed, tuple(f"{line}\n" for line in self.report.error)
        return Failure("rank", self.error, 1, host=placed.host, rank=placed.rank, at=self.at, tail=tail)


# Failures that arrive within this time are compared by when they happened: victims often report first.
EARLIER_SECONDS = 0.3
LAUNCHER_TAIL = 40


class ImpossibleReport(MusterError):
    """A report that cannot be true: about another host, or without a request."""


class LaunchState:
    """One launch from its start to its end."""

    def __init__(self, plan: LaunchPlan, emit: Emit) -> None:
        self.plan, self._emit = plan, emit
        self.deadlines = Deadlines()
        self.placed = {placed.rank: placed for placed in plan.ranks}
        self.commands = {host.host.name for host in plan.hosts if host.command}
        self.phases = {host.host.name: "code delivered" for host in plan.hosts}
        """The phase of the start on each host. It no longer matters for a rank that has started."""
        self.daemons: dict[str, int] = {}
        """The hosts on which mpirun has asked for its daemon, with the number of each request."""
        self.started: set[int] = set()
        self.began: float | None = None
        """The time of the first rank's start."""
        self.asked_grace: float | None = None
        """The grace that `muster stop` on another machine has given."""
        self.ends: dict[int, RankExit] = {}
        self.ended_but_alive: dict[int, EndedButAlive] = {}
        """The ranks whose program is over; also of those that have ended since."""
        self.failures: list[Failure] = []
        self.notes: list[str] = []
        self._short_logs: dict[str, tuple[str, set[int]]] = {}
        self.last_line = ""
        """The last line of rank 0 on stdout."""
        self.launcher_tail: list[str] = []
        self.launcher_codes: dict[str, int] = {}
        self.over = False

    def require_own(self, host: str, rank: int) -> None:
        """`ImpossibleReport` unless this rank was planned for this host."""
        if rank not in self.placed or self.placed[rank].host != host:
            raise ImpossibleReport(f"a report of rank {rank}, which the plan does not have there")

    def fail(self, failure: Failure) -> None:
        """Note a failure. The launch ends EARLIER_SECONDS later: reports of earlier ones may still come."""
        self.failures += [failure, *self._hidden(failure)]
        if not self.over:  # later ones are consequences of the end
            self._emit(of_failure(failure, self.plan))
        self.deadlines.after(EARLIER_SECONDS, self.finish)

    def _hidden(self, failure: Failure) -> Iterable[Failure]:
        """Exceptions of ranks that have not ended yet: their consequences may be reported first."""
        failed = {failure.rank, *(other.rank for other in self.failures)}
        running = (over for rank, over in self.ended_but_alive.items() if rank not in {*failed, *self.ends})
        return [over.as_failure() for over in running if over.failed]

    def program_over(self, over: EndedButAlive) -> None:
        """Note that the program of a rank is over. It has failed once it ends, or does not end in time."""
        rank, again = over.placed.rank, over.placed.rank in self.ended_but_alive
        if rank in self.ends:
            return
        self.ended_but_alive[rank] = over
        if again:
            return
        self.deadlines.after(SHOWN_SECONDS if over.failed else 0.0, lambda: self._show(rank))
        if over.failed:
            self.deadlines.after(over.report.ends_in + LATE_SECONDS, lambda: self._did_not_end(rank))

    def _show(self, rank: int) -> None:
        if rank not in self.ends:
            over = self.ended_but_alive[rank]
            event = self._of_rank("rank.ended-but-alive", rank, over.placed.host, over.at)
            self._emit(replace(event, text=over.sentence))
            self._emit(Said(over.sentence))  # now: the rank may hang before the verdict

    def _did_not_end(self, rank: int) -> None:
        if rank not in self.ends:
            self.fail(self.ended_but_alive[rank].as_failure())

    def rank_started(self, rank: int, host: str) -> None:
        """Note the start of a rank. Only its first counts."""
        self.began = self.began or now()
        if rank not in self.started and rank in self.placed:
            self._emit(self._of_rank("rank.started", rank, host, now()))
        self.started.add(rank)

    def rank_ended(self, end: RankExit) -> None:
        self.ends[end.placed.rank] = end
        event = self._of_rank("rank.ended", end.placed.rank, end.placed.host, end.at)
        self._emit(replace(event, code=end.code, text=end.why))

    def _of_rank(self, kind: str, rank: int, host: str, at: float) -> JobEvent:
        spec, local_rank = self.plan.spec, self.placed[rank].local_rank
        return JobEvent(
            at=at, type=kind, job=spec.job, attempt=spec.attempt, host=host, rank=rank, local_rank=local_rank
        )

    def finish(self) -> None:
        self.over = True

    def log_ended(self, host: str, rank: int, why: str) -> None:
        """Note that the log of a rank on its own host ends early. The first reason of each host is kept."""
        self._short_logs.setdefault(host, (why, set()))[1].add(rank)

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes for the verdict, with those about hosts that could not keep their logs."""
        short = (
            f"{host}: {why}; the logs of {span(sorted(ranks))} end early there, those of the run do not"
            for host, (why, ranks) in self._short_logs.items()
        )
        alive = (
            over.sentence
            for rank, over in sorted(self.ended_but_alive.items())
            if rank not in self.ends or over.report.ended
        )
        return (*self.notes, *short, *alive)

    def launcher_printed(self, text: str) -> None:
        """Keep the last lines of mpirun or torchrun."""
        self.launcher_tail = [*self.launcher_tail[1 - LAUNCHER_TAIL :], text.rstrip("\n")]

    @property
    def all_started(self) -> bool:
        """Whether every planned rank has reported its start."""
        return len(self.started) == len(self.placed)

    @property
    def unstarted(self) -> str:
        """`rank 1 (node1: mpirun started), ranks 2-3 (node2: daemon asked for)`."""
        unstarted = [placed for rank, placed in self.placed.items() if rank not in self.started]
        return ", ".join(
            f"{span([placed.rank for placed in ranks])} ({host}: {self.phases[host]})"
            for host, ranks in groupby(unstarted, lambda placed: placed.host)
        )

    @property
    def missing(self) -> list[int]:
        """The ranks that have not reported their end."""
        return sorted(self.placed.keys() - self.ends.keys())

    def name(self, ranks: Iterable[int]) -> str:
        """`rank 2 (node2), rank 3 (node2)`."""
        return ", ".join(f"rank {rank} ({self.placed[rank].host})" for rank in ranks)
