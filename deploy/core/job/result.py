"""The result of a launch, as values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ..decode import lazy_dataclass
from ..plan.launch_plan import LaunchPlan, PlacedRank
from ..text.text import describe_code, status_of
from ..timings import TimedPart
from ..wire.job_folders import STOPS, end_state

if TYPE_CHECKING:
    from ..connect.requests import EndedProcess
    from ..hosts.stuck_processes import StuckProcesses


@lazy_dataclass(frozen=True)
class Failure:
    """Why a launch failed: the first thing that went wrong, not what followed from it."""

    kind: str
    """What failed, for programs. A feature names kinds of its own, and gives them an `event`."""
    reason: str
    exit_status: int
    host: str | None = None
    rank: int | None = None
    at: float = 0.0
    """On the driver's clock, seconds since the epoch."""
    tail: tuple[str, ...] = ()
    """The last lines that explain it."""
    terminated: bool = False
    """The launcher asked the rank to end before it did."""
    event: str = ""
    """The type of its event, if its kind is not one of the core (FAILURES of events.py)."""
    waits: bool = False
    """Whether ranks wait without end, perhaps for those that have ended well."""
    final: bool = False
    """Whether another attempt would not change it."""

    @property
    def distrusted(self) -> bool:
        """Whether its host broke the protocol."""
        return self.kind == "host" and self.reason.startswith("protocol error")

    @property
    def silent(self) -> bool:
        """Whether its host did not answer (core/connect/silence.py)."""
        return self.kind == "host" and self.reason.startswith("silent for")

    @property
    def headline(self) -> str:
        """`rank 4 on node3: exit status 1`."""
        if self.rank is not None:
            return f"rank {self.rank} on {self.host}: {self.reason}"
        if self.kind in STOPS:
            return f"stopped by {self.reason}; the job was ended on every host"
        return f"{self.host}: {self.reason}" if self.host else self.reason


TERMINATED = 143  # 128 + SIGTERM, as a shell reports it


def interruption(interrupt: KeyboardInterrupt, at: float) -> Failure:
    """The failure after a signal to the driver. The interrupt holds its number; without one, it is SIGINT."""
    number = interrupt.args[0] if interrupt.args else 2
    return Failure("interrupted", describe_code(-number), 128 + number, at=at, final=True)


def stopped_by(by: str) -> str:
    """The reason after `muster stop`. `by`: who asked for it."""
    return f"muster stop, {by}"


def stopped(by: str, exit_status: int, at: float) -> Failure:
    """The failure after `muster stop`. `by`: who asked for it."""
    return Failure("stopped", stopped_by(by), exit_status, at=at, final=True)


def describe_out_of_memory(limit: int | None) -> str:
    """`out of memory, the kernel chose it (limit 256 MiB)`."""
    return "out of memory, the kernel chose it" + (f" (limit {limit >> 20} MiB)" if limit else "")


@lazy_dataclass(frozen=True)
class RankExit:
    """The end of one rank: its exit code (negative for a signal), its time, and the last lines."""

    placed: PlacedRank
    code: int
    at: float
    tail: tuple[str, ...] = ()
    why: str = ""
    """The host's reason besides the code: the kernel killed the rank for lack of memory."""
    found: Mapping[str, str] = field(default_factory=dict)
    """See `RankEnded.found`."""
    terminated: bool = False
    """The launcher asked it to end before it did."""

    def as_failure(self) -> Failure:
        return Failure(
            kind="rank",
            reason=": ".join(part for part in (describe_code(self.code), self.why) if part),
            exit_status=status_of(self.code),
            host=self.placed.host,
            rank=self.placed.rank,
            at=self.at,
            tail=self.tail,
            terminated=self.terminated,
        )


_ALONE_BY = {
    "mpirun": "it loads another MPI than mpirun's",
    "torchrun": "torchrun starts no MPI ranks; use --launcher mpirun",
}


def alone(end: RankExit, plan: LaunchPlan) -> Failure:
    """The failure of a rank that ended well, but was the only one in its MPI world."""
    by = _ALONE_BY[plan.spec.launcher]
    reason = f"to MPI it was the only rank of a world of one, of {len(plan.ranks)} ranks in the job: {by}"
    return replace(end.as_failure(), kind="world", reason=reason, exit_status=1, final=True)


class Finding:
    """What a feature has found out about an attempt."""

    def causes(self, result: LaunchResult) -> Iterable[str]:
        """The lines below the failure in the verdict, which say why."""
        return ()

    def lines(self, result: LaunchResult) -> Iterable[str]:
        """Other lines of the verdict, each with its label: `slow: rank 3 ...`."""
        return ()

    def as_json(self) -> Mapping[str, Any]:
        """Its fields of result.json, as plain values."""
        return {}


@lazy_dataclass(frozen=True)
class LaunchResult:
    """The end of a launch. `left`: the processes on each host that even SIGKILL did not end."""

    plan: LaunchPlan
    started: float
    ended: float
    failure: Failure | None
    ends: Mapping[int, RankExit]
    left: Mapping[str, StuckProcesses] = field(default_factory=dict)
    cleared: frozenset[str] = frozenset()
    """The hosts whose agent has said that no process of the job is left."""
    killed: Mapping[str, tuple[EndedProcess, ...]] = field(default_factory=dict)
    """The programs of ranks that SIGTERM did not end in time, and what ranks left behind, on each host."""
    last_line: str = ""
    """The last line of rank 0 on stdout."""
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    """What features have found out about it, in their order."""
    early: tuple[RankExit, ...] = ()
    """The ranks that ended well before the failure, if ranks failed because a peer was gone (cause.py)."""
    launcher_printed: bool = False
    """Whether mpirun or torchrun printed anything."""
    timings: tuple[TimedPart, ...] = ()
    """The parts of its start, and of the recovery before it."""
    warned: bool = False
    """Whether a signal was passed on to its ranks (rank_io.py): then it does not start again."""
    over: float = 0.0
    """When the driver began to end it."""
    stepped: bool = True
    """Whether its program may have made a step."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """The hosts that earlier attempts had and this one has not, each with the reason."""
    earlier: tuple[LaunchResult, ...] = ()
    """The attempts before this one, once the job is over."""

    @property
    def exit_status(self) -> int:
        """0, or the exit status of the first failure."""
        return self.failure.exit_status if self.failure else 0

    @property
    def state(self) -> Literal["done", "failed", "stopped"]:
        return end_state(self.exit_status, self.failure.kind if self.failure else None)

    def having(self, finding: Finding, **changes: Any) -> LaunchResult:
        """The same result with what a feature has found out, in place of an earlier finding of that type."""
        others = (other for other in self.findings if type(other) is not type(finding))
        return replace(self, findings=(*others, finding), **changes)

    @property
    def causes(self) -> list[str]:
        """What features say about the cause of its failure."""
        return [line for finding in self.findings for line in finding.causes(self)]

    def as_json(self) -> dict[str, Any]:
        failure = self.failure
        return {
            "job": self.plan.spec.job,
            "launcher": self.plan.spec.launcher,
            "attempt": self.plan.spec.attempt,
            "state": self.state,
            "hosts": [host.host.name for host in self.plan.hosts],
            "ranks": [self._rank_json(placed) for placed in self.plan.ranks],
            "first_failure": None
            if failure is None
            else {
                "kind": failure.kind,
                "rank": failure.rank,
                "host": failure.host,
                "reason": failure.reason,
                "time": failure.at,
                "tail": list(failure.tail),
            },
            "causes": self.causes if failure else [],
            "ended_early": [
                {"rank": end.placed.rank, "host": end.placed.host, "time": end.at} for end in self.early
            ],
            "left": [
                {"host": host, **asdict(process)} for host, left in self.left.items() for process in left
            ],
            "killed": [
                {"host": host, **asdict(process)} for host, ended in self.killed.items() for process in ended
            ],
            "left_out": [{"host": host, "why": why} for host, why in self.left_out.items()],
            "started": self.started,
            "ended": self.ended,
            "exit_status": self.exit_status,
            "timings": [asdict(part) for part in self.timings],
            "earlier_attempts": [attempt.as_json() for attempt in self.earlier],
            **{name: value for finding in self.findings for name, value in finding.as_json().items()},
        }

    def _rank_json(self, placed: PlacedRank) -> dict[str, Any]:
        end = self.ends.get(placed.rank)
        return {
            "rank": placed.rank,
            "host": placed.host,
            "local_rank": placed.local_rank,
            "code": end.code if end else None,
            "ended": end.at if end else None,
        }
