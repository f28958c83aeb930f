"""The driver of a batch job, on the first node of its allocation: `batch.py` writes its script.

It is the driver of `muster launch --slurm`, and needs only the standard library. Slurm may start it several
times for one job: after a requeue it makes the next attempt, in the same folder.
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
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import MusterError
from ..jobs.detached_main import end_at_sigterm_alone, stored
from ..jobs.notify import notify
from ..jobs.run_folder import RunFolder
from ..jobs.runner import Attempts
from ..jobs.verdict import end_unstarted, why_unstarted
from ..launch.result import LaunchResult
from ..plan.spec import LaunchSpec
from . import programs
from .allocation import Allocation, on_hosts, steps
from .batch import BATCH, NOTIFY, with_secrets
from .blame import blame_own_end
from .grant import own_allocation
from .mark import mark_of

SAVED = 75
"""EX_TEMPFAIL of sysexits.h: the program has saved after a warning (docs/how-to/own-model.md)."""


def main() -> None:
    """Drive the job whose folder is the last argument, and exit as its first failure did."""
    folder = Path(sys.argv[2])
    end_at_sigterm_alone()
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # until it can be passed on to ranks
        signal.signal(number, lambda number, frame: None)
    sys.exit(drive(folder, os.environ))


def drive(folder: Path, environ: Mapping[str, str]) -> int:
    """Run the job to its verdict; returns the exit status."""
    mark = mark_of(folder)
    requeue = mark is not None and mark.requeue
    try:
        allocation = own_allocation(environ)
        spec = LaunchSpec.of_json(json.loads((folder / BATCH / "job.json").read_text()))
        run, spec = _begin(folder, with_secrets(spec, environ), allocation, requeue=requeue)
        result = _attempts(spec, run, allocation).run()
    except (MusterError, KeyboardInterrupt) as error:
        return _refused(folder, error, environ, requeue=requeue)
    again = requeue and _may_continue(result)
    if again and result.warned:
        again = _requeue(allocation.job)
    if not again:
        _end(folder, spec.notify, result)
    return result.exit_status


def _end(folder: Path, target: str, result: LaunchResult) -> None:
    """After the last start of a job: remove the files for another start, and notify of the end."""
    shutil.rmtree(folder / BATCH, ignore_errors=True)
    if why := notify(target, result):
        sys.stderr.write(f"{why}\n")


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
    store = folder / BATCH / "store"
    return run, dataclasses.replace(
        spec,
        attempt=attempt,
        may_restart=spec.may_restart or requeue,
        tree=stored(spec.tree, store),
        library=stored(spec.library, store),
    )


def _attempts(spec: LaunchSpec, run: RunFolder, allocation: Allocation) -> Attempts:
    open_pipe = steps(spec.python, allocation, look=programs.ending)
    return Attempts(spec, open_pipe, run, (run,), blame=partial(blame_own_end, job=allocation.job))


def _refused(
    folder: Path, error: MusterError | KeyboardInterrupt, environ: Mapping[str, str], *, requeue: bool
) -> int:
    """Record why the ranks did not start; returns the exit status."""
    kind, reason, status = why_unstarted(error, folder)
    sys.stderr.write(f"{reason}\n")
    result = end_unstarted(folder, kind, reason, status)
    if not (requeue and _is_taken(programs.ending(environ.get("SLURM_JOB_ID", "")))):
        _end(folder, environ.get(NOTIFY, ""), result)
    return status


def _may_continue(result: LaunchResult) -> bool:
    """Whether another start continues the job: it has saved after a warning, or Slurm took its hosts."""
    failure = result.failure
    if failure is None:
        return False
    taken = failure.kind == "allocation" and _is_taken(failure.reason)
    return taken or (result.warned and failure.exit_status == SAVED)


def _is_taken(ended: str) -> bool:
    """Whether Slurm took the hosts: only then does it start the job again."""
    return re.search(r"(?:^|: )(PREEMPTED|NODE_FAIL)\b", ended) is not None


def _requeue(job: str) -> bool:
    """Have Slurm start the job again when it has hosts. Slurm then ends this process."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        programs.ask("scontrol", "requeue", job)
    except MusterError as error:
        sys.stderr.write(f"no requeue: {error}\n")
        return False
    return True
