"""Explains a launch that failed because Slurm ended the allocation."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable

from ...core.errors import UnfitError
from ...core.job.feature import Attempt, Feature
from ...core.job.result import TERMINATED, Failure, LaunchResult
from ...core.wire.job_folders import STOPS
from .job_state import ended, ending, is_gone, node_state, shown
from .mark import mark_of, write_mark

OWN = STOPS | {"placement", "world", "driver", "port"}
"""Failures that have another cause."""
STANDSTILLS = frozenset({"host", "network", "driver", "stall"})
"""Failures that follow when no process of a job runs for a while."""
STATUS = 3


class AllocationEnd(Feature):
    """Records the allocation of a job, and makes its end the failure of the job, if Slurm ended it."""

    def __init__(self, blame: Callable[[LaunchResult], LaunchResult]) -> None:
        """`blame`: `blame_slurm` or `blame_own_end`, with the number of the allocation."""
        self._blame = blame

    def begins(self, attempt: Attempt) -> None:
        """Record the allocation, if the disk is not full: later commands reach the hosts by its steps."""
        folder, spec = attempt.folder.path, attempt.plan.spec
        if mark_of(folder) is None:
            with contextlib.suppress(OSError):
                write_mark(folder, spec.allocation, (), python=spec.python)

    def cause(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """The first one to end is not the cause, because Slurm ends all ranks at once."""
        return self._blame(result)


def blame_slurm(result: LaunchResult, job: str, restarts: int = 0) -> LaunchResult:
    """The result with the end of the allocation as its failure, if Slurm ended it; `job` is Slurm's number.

    Slurm then ends all ranks at once, so the first one to end is not the cause. A host that was lost keeps
    its own reason, and gets Slurm's state of the node. `restarts`: the number of this start of the job.
    """
    failure = result.failure
    if failure is None:
        return result
    if failure.kind in STANDSTILLS and shown(job).was_suspended(failure.at):
        return _suspended(result, failure, job)
    if failure.kind in OWN:
        return result
    if state := ended(job, restarts):
        return _taken(result, failure, job, state)
    if failure.kind == "host" and failure.host and is_gone(node := node_state(failure.host)):
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


def blame_own_end(result: LaunchResult, job: str, restarts: int) -> LaunchResult:
    """The same, for a driver that is a part of the job: Slurm ends it by a SIGTERM, as it ends the ranks."""
    failure = result.failure
    if failure and failure.kind not in OWN - {"interrupted"} and (state := ending(job, restarts)):
        return _taken(result, failure, job, state)
    return blame_slurm(result, job, restarts)


def _suspended(result: LaunchResult, failure: Failure, job: str) -> LaunchResult:
    reason = f"Slurm suspended the allocation {job} (scontrol suspend), so its agents did not answer"
    end = Failure("allocation", reason, STATUS, at=failure.at, tail=(f"{failure.headline}\n",))
    return dataclasses.replace(result, failure=end)


def _taken(result: LaunchResult, failure: Failure, job: str, state: str) -> LaunchResult:
    tail = () if failure.kind == "interrupted" else (f"{failure.headline}\n",)
    if state == "CANCELLED":  # with a reason, Slurm itself cancelled it
        end = Failure("stopped", f"scancel (Slurm's job {job})", TERMINATED, at=failure.at, tail=tail)
    else:
        reason = f"Slurm ended the allocation {job}: {state}"
        status = TERMINATED if state.startswith("CANCELLED") else STATUS
        end = Failure("allocation", reason, status, at=failure.at, tail=tail)
    return dataclasses.replace(result, failure=end)
