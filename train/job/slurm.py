"""What a Slurm step sets in the environment: how many tasks a host has, and where they can meet.

The formats are srun(1)'s, section OUTPUT ENVIRONMENT VARIABLES, and scontrol(1)'s of a hostlist.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from .failure import TrainError


def tasks_on_this_host(environ: Mapping[str, str]) -> int:
    """Return the number of this step's tasks on this host: of `2(x3),1` host 3 (SLURM_NODEID) has 1.

    Raises ValueError if the variables do not have that form.
    """
    counts: list[int] = []
    for part in environ["SLURM_STEP_TASKS_PER_NODE"].split(","):
        matched = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if not matched:
            raise ValueError(part)
        counts += [int(matched[1])] * int(matched[2] or 1)
    node = int(environ.get("SLURM_NODEID", "0"))
    return counts[node] if node < len(counts) else counts[0]


def first_host(hostlist: str) -> str:
    """Return the first name of a hostlist: node03 of `node[03-05,7],login1`."""
    first = re.match(r"(?:[^\[,]|\[[^\]]*\])+", hostlist)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first[0]) if first else ""


def rendezvous_address(environ: Mapping[str, str]) -> tuple[str, int]:
    """Return host and port of the rendezvous on the step's rank 0; every task computes the same.

    The port is below the ephemeral range, and differs between the jobs and steps that may share a host.
    """
    host = first_host(environ.get("SLURM_STEP_NODELIST", ""))
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")
    if not (host and job.isdecimal() and step.isdecimal()):
        raise TrainError(
            "no rendezvous for this Slurm step without SLURM_STEP_NODELIST, SLURM_JOB_ID and SLURM_STEP_ID\n"
            "set MASTER_ADDR and MASTER_PORT, or --init tcp://HOST:PORT"
        )
    return host, 20000 + (int(job) * 8 + int(step)) % 10000
