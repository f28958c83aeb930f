"""The runs of this machine, with Slurm's states of those that are batch jobs.

While its driver runs, the folder of a job has its state. Before that, and after a driver without a result,
Slurm has it: the job waits, or the reason of its end.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ...core.connect.requests import END_DRIVER, Answer, JobList, JobState, Request, Told
from ...core.errors import MusterError
from ...core.job.find import LocalRuns
from ...core.job.result import TERMINATED, stopped_by
from ...core.job.verdict import end_unstarted
from ...core.wire.durable import write_atomically
from ...core.wire.job_folders import stop_record
from .batch import BATCH, LOG
from .job_state import FROZEN, WAITING, outcome, own_jobs, shown
from .mark import mark_of
from .programs import ask

FRESH_SECONDS = 2.0  # of an answer of squeue: a command that follows a job asks several times a second
ENDED = frozenset({"done", "failed", "stopped"})
"""States after which Slurm may start a job again, as long as the folder has the files for that."""


class BatchRuns:
    """Answers as `LocalRuns` does."""

    host = ""

    def __init__(self, runs: Path, local: LocalRuns) -> None:
        self._runs, self._local = runs, local
        self._asked, self._queue = 0.0, dict[str, str]()

    def ask(
        self, request: Request[Answer], payload: bytes = b"", *, seconds: float = 30.0, **fields: Any
    ) -> Answer:
        """The answer that an agent would give."""
        mark = mark_of(self._runs / fields["job"]) if request is END_DRIVER else None
        if mark and mark.is_batch:
            return cast(Answer, self._end(mark.number, **fields))
        answer = self._local.ask(request, payload, seconds=seconds, **fields)
        if isinstance(answer, JobList):
            return cast(Answer, JobList(tuple(map(self._amended, answer.jobs))))
        return answer

    def _amended(self, state: JobState) -> JobState:
        mark = mark_of(self._runs / state.job)
        is_over = state.state in ENDED and not (self._runs / state.job / BATCH).is_dir()
        if not mark or not mark.is_batch or is_over:
            return state
        try:
            queue = self._queued()
        except MusterError as error:
            return state if state.state in ENDED else dataclasses.replace(state, why=str(error))
        return amended(state, mark.number, queue, self._runs / state.job)

    def _queued(self) -> Mapping[str, str]:
        if time.monotonic() - self._asked > FRESH_SECONDS or not self._asked:
            self._queue = own_jobs()
            self._asked = time.monotonic()
        return self._queue

    def _end(self, number: str, *, job: str, by: str, grace: float | None, force: bool) -> Told:
        """Signal the driver, on another machine, through Slurm; cancel a job that waits in the queue."""
        folder = self._runs / job
        again = (folder / "stop.json").exists()
        if self._queued().get(number, "").startswith(WAITING):
            ask("scancel", number)
            end_unstarted(folder, "stopped", stopped_by(by), TERMINATED)
            shutil.rmtree(folder / BATCH, ignore_errors=True)
        else:
            write_atomically(folder / "stop.json", stop_record(by, grace), 0o600)
            ask("scancel", *(() if force else ("--batch", "--signal=TERM")), number)
        self._asked = 0.0
        return Told(True, again)


def amended(state: JobState, number: str, queue: Mapping[str, str], folder: Path) -> JobState:
    """The state of a batch job that has no result yet, or that Slurm may start again."""
    described = queue.get(number, "")
    if described.startswith(WAITING):
        return dataclasses.replace(
            state, state="waiting", why=f"Slurm's job {number}: {described}", ended=None, exit_status=None
        )
    if described:  # while Slurm lists it, a job with a result may still be requeued
        why = f"Slurm's job {number}: {described}" if described.startswith(FROZEN) else ""
        return dataclasses.replace(state, state="running", why=why, ended=None, exit_status=None)
    if state.state in ENDED:
        return state
    how = outcome(number)
    why = f"Slurm ended the allocation {number}: {how}" if how else f"Slurm no longer has its job {number}"
    node = shown(number).fields.get("BatchHost")  # on which Slurm makes the log of the driver
    if node and not (folder / LOG).exists():
        why += f"; {folder} is not shared with {node}: give a --runs that login node and nodes share"
    return dataclasses.replace(state, state="lost", why=why)
