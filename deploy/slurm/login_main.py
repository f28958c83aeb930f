"""The driver of a job on a login node of Slurm, for a launch from another machine.

`deploy/agent/job/detach.py` starts it. It is the driver of a detached job, but asks Slurm for its hosts, and
reaches them by steps of Slurm.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from functools import partial

from ..connect.transports.srun import SrunPipe
from ..errors import UsageError
from ..jobs import detached_main
from ..jobs.detached_main import Hosts
from ..jobs.job import Job
from ..jobs.run_folder import RunFolder
from . import programs
from .blame import blame_slurm
from .grant import granted
from .site import require_pmix


def main(folder_name: str) -> None:
    """Drive the job given on stdin, on hosts that Slurm gives."""
    detached_main.main(folder_name, allocated)


@contextlib.contextmanager
def allocated(job: Job, run: RunFolder, waits: Callable[[str], None]) -> Iterator[Hosts]:
    """The job on an allocation, which is given back at the end."""

    def tell(line: str) -> None:
        run.wait(job.spec, line)
        waits(f"job {job.spec.job}: {line}")

    if job.spec.launcher == "srun":
        require_pmix()
    with granted(job.slurm, os.environ, tell, None) as given:
        if job.min_hosts > len(given.hosts):
            raise UsageError(f"--min-hosts {job.min_hosts}: Slurm gave {len(given.hosts)}")
        explain = partial(programs.why_lost, given.job)
        yield Hosts(
            dataclasses.replace(
                job,
                hosts=given.hosts,
                min_hosts=job.min_hosts or len(given.hosts),
                spec=dataclasses.replace(job.spec, allocation=given.job),
            ),
            lambda host: SrunPipe(given.job, host, job.python or "python3", explain),
            partial(blame_slurm, job=given.job),
        )
