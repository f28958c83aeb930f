"""The driver of a job on a login node of Slurm, for a launch from another machine.

`deploy/agent/job/detach.py` starts it. It is the driver of a detached job, but gets its hosts from Slurm, and
reaches them by steps of Slurm.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial

from ..jobs import detached_main
from ..jobs.detached_main import Hosts
from ..jobs.run_folder import RunFolder
from ..plan.spec import LaunchSpec
from .allocation import on_hosts, steps
from .blame import blame_slurm
from .grant import request_allocation
from .programs import require_pmix


def main(folder_name: str) -> None:
    """Drive the job from stdin, on hosts from Slurm."""
    detached_main.main(folder_name, allocated)


@contextlib.contextmanager
def allocated(spec: LaunchSpec, run: RunFolder, waits: Callable[[str], None]) -> Iterator[Hosts]:
    """The job on an allocation, which is released at the end."""

    def report(line: str) -> None:
        run.wait(spec, line)
        waits(f"job {spec.job}: {line}")

    if spec.launcher == "srun":
        require_pmix()
    with request_allocation(spec.slurm, os.environ, report, spec.slurm_timeout or None) as allocation:
        yield Hosts(
            on_hosts(spec, allocation),
            steps(spec.python, allocation),
            partial(blame_slurm, job=allocation.job),
        )
