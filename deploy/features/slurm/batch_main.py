"""The driver of a batch job, on the first node of its allocation: `batch.py` writes its script.

It is the driver of `muster launch --slurm`, and needs only the standard library. Slurm may start it several
times for one job: after a requeue it makes the next attempt, in the same folder. The folder `batch` is there
as long as Slurm may start the job.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...core.errors import MusterError
from ...core.job.driver_on_host import end_at_sigterm_alone, with_store
from ...core.job.feature import AllFeatures, Features
from ...core.job.job import Job
from ...core.job.result import Failure, LaunchResult
from ...core.job.run_folder import RunFolder
from ...core.job.verdict import end_unstarted, why_unstarted
from ...core.plan.spec import LaunchSpec
from .allocation import Allocation, on_hosts, restarts_of, steps
from .batch import BATCH, with_secrets
from .blame import OWN, AllocationEnd
from .grant import own_allocation
from .job_state import shown
from .mark import mark_of
from .programs import ask, kill_wait, reaches, statuses_to_requeue

RECORD_SECONDS = 5.0  # of the time that Slurm gives a job to end, for the end of this driver
SAVED = 75
"""EX_TEMPFAIL of sysexits.h: the program has saved after a warning (docs/how-to/own-model.md)."""


def main(all_features: AllFeatures, folder_name: str) -> None:
    """Drive the job in this folder, and exit as its first failure did."""
    end_at_sigterm_alone()
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # until it can be passed on to ranks
        signal.signal(number, lambda number, frame: None)
    sys.exit(drive(all_features, Path(folder_name), os.environ))


def drive(all_features: AllFeatures, folder: Path, environ: Mapping[str, str]) -> int:
    """Run the job to its verdict; returns the exit status."""
    mark = mark_of(folder)
    start = _Start(environ.get("SLURM_JOB_ID", ""), restarts_of(environ))
    features = Features()
    try:
        written = json.loads((folder / BATCH / "job.json").read_text())
        spec = with_secrets(LaunchSpec.of_json(written, all_features.options), environ)
        features = all_features.of(spec)
        allocation = own_allocation(environ)
        features = all_features.of(spec, AllocationEnd(allocation))
        run, spec = _begin(folder, spec, allocation, requeue=mark is not None and mark.requeue)
        result = Job(spec, steps(spec.python, allocation), run, features).run()
    except (MusterError, KeyboardInterrupt) as error:
        kind, reason, status = why_unstarted(error, folder)
        sys.stderr.write(f"{reason}\n")
        result = end_unstarted(folder, kind, reason, status)
    if not start.is_followed(result):
        shutil.rmtree(folder / BATCH, ignore_errors=True)  # the files for another start
        sys.stderr.writelines(f"{note}\n" for note in features.closed(result))
    return result.exit_status


class _Start(NamedTuple):
    """One of the starts of a job of Slurm."""

    job: str
    restarts: int

    def is_followed(self, result: LaunchResult) -> bool:
        """Whether Slurm starts the job again after this end; if it should, this requests it from Slurm."""
        job = shown(self.job)
        if job.starts_again(self.restarts):
            return True
        if not job.may_start_again or result.failure is None:
            return False
        if self._should_continue(result, result.failure):
            return _requeue(self.job)
        return result.exit_status in statuses_to_requeue()

    def _should_continue(self, result: LaunchResult, failure: Failure) -> bool:
        """Whether the job has saved after a warning, or has lost hosts that Slurm can replace."""
        if failure.kind == "allocation":
            return re.search(r": (PREEMPTED|NODE_FAIL)\b", failure.reason) is not None
        if result.warned and failure.exit_status == SAVED:
            return True
        # A lost host may end mpirun, or a rank of another host, before its silence is noticed.
        hosts = [planned.host.name for planned in result.plan.hosts]
        return failure.kind not in OWN and bool(hosts) and not reaches(self.job, hosts)


def _begin(
    folder: Path, spec: LaunchSpec, allocation: Allocation, *, requeue: bool
) -> tuple[RunFolder, LaunchSpec]:
    """The run's folder, and the job on the hosts of the allocation, as the next attempt."""
    record: dict[str, Any] = json.loads((folder / "job.json").read_text())
    again = (folder / "logs").is_dir()
    for name in ("result.json", "stop.json", "verdict.txt") if again else ():
        (folder / name).unlink(missing_ok=True)
    run = RunFolder(folder.parent, folder.name, detached=True, max_log=spec.max_log, again=again)
    run.record = {"started": record["started"]}
    attempt = record["attempt"] + 1 if again else 0
    spec = on_hosts(spec, allocation)
    spec = with_store(spec, folder / BATCH / "store")
    grace = min(spec.grace, max(0.0, kill_wait() - RECORD_SECONDS))
    may_restart = spec.may_restart or requeue
    return run, dataclasses.replace(spec, attempt=attempt, may_restart=may_restart, grace=grace)


def _requeue(job: str) -> bool:
    """Have Slurm start the job again when it has hosts. Slurm then ends this process."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        ask("scontrol", "requeue", job)
    except MusterError as error:
        sys.stderr.write(f"no requeue: {error}\n")
        return False
    return True
