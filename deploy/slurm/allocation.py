"""An allocation of Slurm as hosts, from the variables that Slurm sets for it. Pure: text in, hosts out.

salloc(1) and sbatch(1), section OUTPUT ENVIRONMENT VARIABLES, describe the variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import UsageError
from ..hosts.hostfile import MAX_HOSTS, MAX_SLOTS, Host

PREFIX = "SLURM_"
_REPEATED = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?")
_GPUS = re.compile(r"(?:[A-Za-z0-9_.-]+:)?(\d{1,4})(?:\(.*\))?")
_JOB = re.compile(r"\d{1,10}")


@dataclass(frozen=True)
class Allocation:
    """Hosts that Slurm gave to a job of Slurm."""

    job: str
    """Slurm's number of it."""
    hosts: tuple[Host, ...]
    """In Slurm's order; slots are tasks, or GPUs where only GPUs were asked for."""
    partition: str = ""


def allocation_of(variables: Mapping[str, str], expand: Callable[[str], Sequence[str]]) -> Allocation:
    """The allocation that these variables describe; `expand` turns `node[1-3]` into names.

    `UsageError` if a variable is missing or makes no sense.
    """
    job = variables.get("SLURM_JOB_ID", "")
    if not _JOB.fullmatch(job):
        raise UsageError(
            'no allocation of Slurm here: SLURM_JOB_ID is not set; ask for one: --slurm "-N 2 -t 60"'
        )
    names = expand(variables.get("SLURM_JOB_NODELIST", ""))
    if not 1 <= len(names) <= MAX_HOSTS:
        raise UsageError(f"Slurm's allocation {job}: {len(names)} hosts in SLURM_JOB_NODELIST")
    slots = _slots(variables, len(names), job)
    hosts = tuple(Host(name, slots=number) for name, number in zip(names, slots, strict=True))
    return Allocation(job, hosts, variables.get("SLURM_JOB_PARTITION", ""))


def _slots(variables: Mapping[str, str], hosts: int, job: str) -> list[int]:
    """Ranks for each host: its tasks. Where nobody asked for tasks, a rank for each GPU."""
    asked = any(variables.get(name) for name in ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"))
    if not asked and (gpus := _GPUS.fullmatch(variables.get("SLURM_GPUS_PER_NODE", ""))):
        return [max(1, min(int(gpus[1]), MAX_SLOTS))] * hosts
    text = variables.get("SLURM_TASKS_PER_NODE", "1" if hosts == 1 else f"1(x{hosts})")
    numbers = repeated(text)
    if len(numbers) != hosts or not all(1 <= number <= MAX_SLOTS for number in numbers):
        raise UsageError(
            f"Slurm's allocation {job}: SLURM_TASKS_PER_NODE={text} does not fit its {hosts} hosts"
        )
    return numbers


def repeated(text: str) -> list[int]:
    """`2(x3),1` -> 2, 2, 2, 1; empty if the text is something else."""
    numbers: list[int] = []
    for part in text.split(","):
        match = _REPEATED.fullmatch(part)
        times = int(match[2] or 1) if match else 0
        if not match or len(numbers) + times > MAX_HOSTS:
            return []
        numbers += [int(match[1])] * times
    return numbers
