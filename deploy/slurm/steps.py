"""A job on the hosts that Slurm has given, reached by steps: for drivers on a node and on a login node."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from functools import partial

from ..connect.pipe import OpenPipe
from ..connect.transports.srun import SrunPipe
from ..errors import MusterError
from ..jobs.job import Job
from . import programs
from .allocation import Allocation


def on_hosts(job: Job, given: Allocation) -> Job:
    """The job on the hosts of the allocation; `MusterError` if they are too few."""
    if job.min_hosts > len(given.hosts):
        raise MusterError(f"--min-hosts {job.min_hosts}: Slurm gave {len(given.hosts)}")
    return dataclasses.replace(
        job,
        hosts=given.hosts,
        min_hosts=job.min_hosts or len(given.hosts),
        spec=dataclasses.replace(job.spec, allocation=given.job),
    )


def steps(job: Job, given: Allocation, *, look: Callable[[str], str] = programs.ended) -> OpenPipe:
    """Opens an agent as a step of the allocation. `look`: what Slurm says about the end of the job."""
    explain, python = partial(programs.why_lost, given.job, look=look), from_home(job.python or "python3")
    return lambda host: SrunPipe(given.job, host, python, explain)


def from_home(python: str) -> str:
    """The path as it is meant over SSH, where it begins at the home folder: `~/venv/bin/python`.

    A step begins in the folder of its driver, which is not the user's.
    """
    return f"~/{python}" if re.match(r"[^~/][^/]*/", python) else python
