"""Explains a launch that failed because Slurm ended the allocation."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Iterator

from ...core.errors import UnfitError
from ...core.job.feature import Attempt, Feature
from ...core.job.result import TERMINATED, Failure, LaunchResult
from ...core.text.text import span
from ...core.wire.job_folders import STOPS
from .allocation import Allocation
from .job_state import ended, is_gone, node_state, shown
from .mark import mark_of, write_mark

OWN = STOPS | {"placement", "world", "driver"}
"""Failures that have another cause."""
STANDSTILLS = frozenset({"host", "network", "driver", "stall"})
"""Failures that follow when no process of a job runs for a while."""
STATUS, ENDED = 3, "allocation.ended"
TIME_LIMIT = (
    "give it more time (-t), or save at SIGUSR1 and end with status 75; a batch job gets SIGUSR1 60 s before "
    "its limit and continues with --requeue, other launches get it with --signal=USR1@60"
)


class AllocationEnd(Feature):
    """Records the allocation of a job, and makes its end the failure of the job, if Slurm ended it."""

    def __init__(self, allocation: Allocation) -> None:
        self._job, self._restarts = allocation.job, allocation.restarts

    def begins(self, attempt: Attempt) -> None:
        """Record the allocation, if the disk is not full: later commands reach the hosts by its steps."""
        folder = attempt.folder.path
        if mark_of(folder) is None:
            with contextlib.suppress(OSError):
                write_mark(folder, self._job, (), python=attempt.plan.spec.python)

    def cause(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """The first one to end is not the cause, because Slurm ends all ranks at once."""
        return blame_slurm(result, self._job, self._restarts)


def blame_slurm(result: LaunchResult, job: str, restarts: int = 0) -> LaunchResult:
    """The result with the end of the allocation as its failure, if Slurm ended it; `job` is Slurm's number.

    Slurm then ends all ranks at once, so the first one to end is not the cause; a driver in a job of Slurm
    gets SIGTERM as they do. A host that was lost keeps its own reason, and gets Slurm's state of the node.
    `restarts`: the number of this start of the job.
    """
    failure = result.failure
    if failure is None and not any(end.terminated for end in result.ends.values()):
        return result
    if failure and failure.kind in STANDSTILLS and shown(job).was_suspended(failure.at):
        return _suspended(result, failure, job)
    gets_sigterm = failure and failure.kind == "interrupted" and failure.exit_status == TERMINATED
    if failure and failure.kind in OWN and not gets_sigterm:
        return result
    if state := ended(job, restarts):
        return _taken(result, job, state)
    is_unexplained = failure and failure.kind == "host" and "Slurm" not in failure.reason
    if failure and failure.host and is_unexplained and is_gone(node := node_state(failure.host)):
        line = f"Slurm: {failure.host} is {node}\n"
        return dataclasses.replace(result, failure=dataclasses.replace(failure, tail=(*failure.tail, line)))
    return result


def blame_for_unfit(error: UnfitError, job: str) -> UnfitError:
    """The error with the end of the allocation as each host's reason, if Slurm ended it.

    On a shared home, an agent that Slurm ends removes the job's folder while another agent still writes to
    it.
    """
    if state := ended(job):
        return UnfitError((host, f"Slurm ended the allocation {job}: {state}") for host, _ in error.reasons)
    return error


def _suspended(result: LaunchResult, failure: Failure, job: str) -> LaunchResult:
    reason = f"Slurm suspended the allocation {job} (scontrol suspend), so its agents did not answer"
    at, tail = failure.at, (f"{failure.headline}\n",)
    end = Failure("allocation", reason, STATUS, at=at, tail=tail, event=ENDED, final=True)
    return dataclasses.replace(result, failure=end)


def _taken(result: LaunchResult, job: str, state: str) -> LaunchResult:
    failure, notes = result.failure, [*result.notes, *_saved(result)]
    at = failure.at if failure else result.ended
    tail = (f"{failure.headline}\n",) if failure and failure.kind != "interrupted" else ()
    kind, event, reason = "allocation", ENDED, f"Slurm ended the allocation {job}: {state}"
    if state == "CANCELLED":  # with a reason, Slurm itself cancelled it
        kind, event, reason = "stopped", "", f"scancel (Slurm's job {job})"
    status = TERMINATED if state.startswith("CANCELLED") else STATUS
    end = Failure(kind, reason, status, at=at, tail=tail, event=event, final=True)
    notes += [TIME_LIMIT] if state.startswith("TIMEOUT") else []
    return dataclasses.replace(result, failure=end, notes=tuple(notes))


def _saved(result: LaunchResult) -> Iterator[str]:
    """Which ranks ended in time after SIGTERM, and which Slurm killed; nothing if none of the first."""
    codes = {rank: end.code for rank, end in result.ends.items()}
    killed = [one.rank for one in result.plan.ranks if codes.get(one.rank, -9) == -signal.SIGKILL]
    if saved := [rank for rank, end in result.ends.items() if end.terminated and end.code >= 0]:
        more = f", and Slurm killed {span(killed)}" if killed else ""
        yield f"after SIGTERM {span(saved)} ended in time{more}"
