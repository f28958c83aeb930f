"""The state of a running launch, and its failures so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..common.clock import now
from ..console.text import span
from ..errors import MusterError
from ..plan import openmpi
from ..plan.launch_plan import LaunchPlan
from .job_events import EventType, JobEvent, Tell, ignore, of_failure
from .lingering import LATE_SECONDS, SHOWN_SECONDS, Lingering
from .result import Failure, RankEnd
from .timers import Deadlines

# Failures that arrive within this time are compared by when they happened: victims often report first.
SETTLE_SECONDS = 0.3
LAUNCHER_TAIL = 40


class UntrueReport(MusterError):
    """A report that cannot be true: about another host, or about something that nobody asked for."""


class State:
    """One launch from its start to its end."""

    def __init__(self, plan: LaunchPlan, tell: Tell = ignore) -> None:
        self.plan, self._tell = plan, tell
        self.deadlines = Deadlines()
        self.places = {place.rank: place for place in plan.ranks}
        self.commands = {host.host.name for host in plan.hosts if host.command}
        self.phases = {host.host.name: "code delivered" for host in plan.hosts}
        """How far the start on each host has come. It no longer matters for a rank that has started."""
        self.daemons: dict[str, int] = {}
        """The hosts on which mpirun has asked for its daemon, with the number of each request."""
        self.started: set[int] = set()
        self.ends: dict[int, RankEnd] = {}
        self.lingering: dict[int, Lingering] = {}
        """The ranks whose program is over; also of those that have ended since."""
        self.failures: list[Failure] = []
        self.notes: list[str] = []
        self._short_logs: dict[str, tuple[str, set[int]]] = {}
        self.last_line = ""
        """What rank 0 said last on stdout."""
        self.launcher_tail: list[str] = []
        self.launcher_codes: dict[str, int] = {}
        self.over = False

    def require_own(self, host: str, rank: int) -> None:
        """`UntrueReport` unless this rank was planned for this host."""
        if rank not in self.places or self.places[rank].host != host:
            raise UntrueReport(f"a report of rank {rank}, which the plan does not have there")

    def fail(self, failure: Failure) -> None:
        """Note a failure. The launch ends SETTLE_SECONDS later: reports of earlier ones may still come."""
        self.failures += [failure, *self._hidden(failure)]
        if not self.over:  # later ones are consequences of the end
            self._tell(of_failure(failure, self.plan))
        self.deadlines.after(SETTLE_SECONDS, self.finish)

    def _hidden(self, failure: Failure) -> Iterable[Failure]:
        """Exceptions of ranks that have not ended yet: what follows from them may be reported first."""
        known = {failure.rank, *(other.rank for other in self.failures)}
        running = (rank for rank in self.lingering if rank not in self.ends and rank not in known)
        return [self.lingering[rank].as_failure() for rank in running if self.lingering[rank].failed]

    def program_over(self, over: Lingering) -> None:
        """Note that the program of a rank is over. It has failed once it ends, or does not end in time."""
        rank, again = over.place.rank, over.place.rank in self.lingering
        if rank in self.ends:
            return
        self.lingering[rank] = over
        if again:
            return
        self.deadlines.after(SHOWN_SECONDS if over.failed else 0.0, lambda: self._show(rank))
        if over.failed:
            self.deadlines.after(over.report.ends_in + LATE_SECONDS, lambda: self._did_not_end(rank))

    def _show(self, rank: int) -> None:
        if rank not in self.ends:
            over = self.lingering[rank]
            event = self._of_rank("rank.lingers", rank, over.place.host, over.at)
            self._tell(replace(event, text=over.sentence))

    def _did_not_end(self, rank: int) -> None:
        if rank not in self.ends:
            self.fail(self.lingering[rank].as_failure())

    def rank_started(self, rank: int, host: str) -> None:
        """Note the start of a rank. Only its first counts."""
        if rank not in self.started and rank in self.places:
            self._tell(self._of_rank("rank.started", rank, host, now()))
        self.started.add(rank)

    def rank_ended(self, end: RankEnd) -> None:
        """Note the end of a rank."""
        self.ends[end.place.rank] = end
        event = self._of_rank("rank.ended", end.place.rank, end.place.host, end.at)
        self._tell(replace(event, code=end.code, text=end.why))

    def _of_rank(self, kind: EventType, rank: int, host: str, at: float) -> JobEvent:
        spec, local_rank = self.plan.spec, self.places[rank].local_rank
        return JobEvent(
            at=at, type=kind, job=spec.job, attempt=spec.attempt, host=host, rank=rank, local_rank=local_rank
        )

    def finish(self) -> None:
        """End the launch."""
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
        lingering = (
            over.sentence
            for rank, over in sorted(self.lingering.items())
            if rank not in self.ends or over.report.ended
        )
        return (*self.notes, *short, *lingering)

    def launcher_said(self, text: str) -> None:
        """Keep the last lines of mpirun or torchrun. Add a note if MPI_Comm_spawn found no free slot."""
        if openmpi.is_full(text) and openmpi.FULL not in self.notes:
            self.notes.append(openmpi.FULL)
        self.launcher_tail = [*self.launcher_tail[1 - LAUNCHER_TAIL :], text.rstrip("\n")]

    @property
    def all_started(self) -> bool:
        """Whether every planned rank has reported its start."""
        return len(self.started) == len(self.places)

    @property
    def missing(self) -> list[int]:
        """The ranks that have not reported their end."""
        return sorted(self.places.keys() - self.ends.keys())

    def name(self, ranks: Iterable[int]) -> str:
        """`rank 2 (node2), rank 3 (node2)`."""
        return ", ".join(f"rank {rank} ({self.places[rank].host})" for rank in ranks)
