"""A job on the hosts that Slurm has given, reached by steps: for drivers on a node and on a login node."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from functools import partial

from ..connect.pipe import OpenPipe
from ..connect.transports.srun import SrunPipe
from ..errors import UsageError
from ..plan.spec import LaunchSpec
from . import programs
from .allocation import Allocation


def on_hosts(spec: LaunchSpec, given: Allocation) -> LaunchSpec:
    """The job on the hosts of the allocation; `UsageError` if they are too few."""
    if spec.min_hosts > len(given.hosts):
        raise UsageError(f"--min-hosts {spec.min_hosts}: Slurm gave {len(given.hosts)}")
    return dataclasses.replace(
        spec,
        hosts=given.hosts,
        min_hosts=spec.min_hosts or len(given.hosts),
        allocation=given.job,
    )


def steps(python: str, given: Allocation, *, look: Callable[[str], str] = programs.ended) -> OpenPipe:
    """Opens an agent as a step of the allocation. `look`: what Slurm says about the end of the job."""
    explain, command = partial(programs.why_lost, given.job, look=look), from_home(python or "python3")
    return lambda host: SrunPipe(given.job, host, command, explain)


def from_home(python: str) -> str:
    """The path as it is meant over SSH, where it begins at the home folder: `~/venv/bin/python`.

    A step begins in the folder of its driver, which is not the user's.
    """
    return f"~/{python}" if re.match(r"[^~/][^/]*/", python) else python
