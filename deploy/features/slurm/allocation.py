"""An allocation of Slurm as hosts, which the driver reaches by steps of Slurm.

Slurm describes it by variables: salloc(1) and sbatch(1), section OUTPUT ENVIRONMENT VARIABLES.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ...core.connect import bootstrap
from ...core.connect.pipe import (
    AGENT_KILLED,
    KILLED,
    PYTHON_FAILED,
    SEE_MEMORY,
    EndedError,
    LostError,
    OpenPipe,
)
from ...core.connect.transports.process import ProcessPipe
from ...core.errors import HostError, UsageError
from ...core.hosts.hostfile import MAX_HOSTS, MAX_SLOTS, Host
from ...core.plan.spec import LaunchSpec
from ...core.text.text import count
from ...core.wire.protocol import TERM_TO_RANKS
from . import job_state
from .mark import Mark
from .options import AllocationOptions
from .programs import for_slurm

WITH_PATH = 'PATH="${PATH:-/usr/local/bin:/usr/bin:/bin}"; export PATH;'


def command(job: str, host: Host, python: str, gres: str | None) -> list[str]:
    """The argv of the step. It shares the allocation's resources on that host with the job's other steps.

    `gres`: the GPUs that it names. Without it, Slurm wants for a step what `--gpus=4` gave to all hosts, and
    refuses the step. --overlap: beside other steps, with all CPUs and GPUs of the job there. --mpi=none: the
    launcher below the agent brings its own. --kill-on-bad-exit=0: the driver judges the end of another host.
    After sbatch --export=NIL there is no PATH: neither to find sh on, nor for Python to find itself on.
    """
    options = [
        *(f"--jobid={job}", f"--nodelist={host.name}", "--nodes=1", "--ntasks=1", "--overlap"),
        *("--mpi=none", "--cpu-bind=none", "--kill-on-bad-exit=0", "--quiet", "--unbuffered"),
        *("--export=ALL", "--job-name=muster-agent"),
        *([] if gres is None else [f"--gres={gres or 'none'}"]),
    ]
    agent = f"{bootstrap.command(python)} {TERM_TO_RANKS}"
    return ["srun", *options, "/bin/sh", "-c", f"{WITH_PATH} exec {agent}"]


class SrunPipe(ProcessPipe):
    """An agent as the task of a step. `explain` returns Slurm's reason for the end of a host."""

    leaves = False  # Slurm ends the step with the allocation; srun itself would wait for a lost node

    def __init__(
        self, job: str, host: Host, python: str, explain: Callable[[str], str], gres: str | None = None
    ) -> None:
        self._name, self._explain = host.name, explain
        try:
            super().__init__(command(job, host, python, gres), for_slurm(os.environ))
        except OSError as error:
            raise HostError("slurm.no-srun", f"no srun here: {error.strerror}", "add it to PATH") from None

    def last_words(self, printed: str = "") -> LostError:
        """Slurm's reason, or how Python ended there."""
        status, lines = self.end_and_lines()
        if reason := self._explain(self._name):
            return EndedError(reason, "see scontrol show job, and ask the site's staff", kind="slurm.ended")
        if memory := next(filter(_MEMORY.match, lines), ""):
            return EndedError(memory, "ask Slurm for more: --mem", kind="agent.killed")
        last_line = lines[-1] if lines else printed or "no message"
        if status == KILLED:
            return EndedError(AGENT_KILLED, SEE_MEMORY, kind="agent.killed")
        if last_line.startswith(("srun: ", "slurmstepd")):
            return EndedError(last_line, "Slurm started no agent there", kind="slurm.step-failed")
        text = f"the agent ended with status {status}: {last_line}"
        return EndedError(text, PYTHON_FAILED, kind="python.failed")


PREFIX = "SLURM_"
_MEMORY = re.compile(r"(?:srun|slurmstepd[^:]*): .*(?i:oom.kill|out of memory|memory limit)")
_REPEATED = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?")
_GPUS = re.compile(r"\bgpu(?::[^:,]+)?:(\d{1,4})\b")
_JOB = re.compile(r"\d{1,10}")


@dataclasses.dataclass(frozen=True)
class Allocation:
    """Hosts that Slurm gave to a job of Slurm."""

    job: str
    """Slurm's number of it."""
    hosts: tuple[Host, ...]
    """In Slurm's order; slots are tasks, or GPUs where only GPUs were asked for."""
    restarts: int = 0
    """How often Slurm had started the job before: it may queue a batch job again."""
    gres: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What Slurm gave on each host, GPUs among it, for its steps to name."""


def allocation_of(
    variables: Mapping[str, str],
    expand: Callable[[str], Sequence[str]],
    granted: Callable[[str], Mapping[str, str]],
) -> Allocation:
    """The allocation that these variables describe; `expand` turns `node[1-3]` into names.

    `granted` returns what Slurm gave a job on each host, as `job_state.gres_of`.

    `UsageError` if a variable is missing or invalid.
    """
    job = variables.get("SLURM_JOB_ID", "")
    if not _JOB.fullmatch(job):
        raise UsageError(
            'no allocation of Slurm here: SLURM_JOB_ID is not set; ask for one: --slurm "-N 2 -t 60"'
        )
    if "SLURM_HET_SIZE" in variables:  # its variables describe the first component alone
        raise UsageError(f"Slurm's allocation {job} is a heterogeneous job, which is not supported")
    names = expand(variables.get("SLURM_JOB_NODELIST", ""))
    if not 1 <= len(names) <= MAX_HOSTS:
        raise UsageError(f"Slurm's allocation {job}: {len(names)} hosts in SLURM_JOB_NODELIST")
    gres = granted(job)
    gpus = [sum(map(int, _GPUS.findall(gres.get(name, "")))) for name in names]
    slots = _slots(variables, gpus, job)
    hosts = tuple(Host(name, slots=number) for name, number in zip(names, slots, strict=True))
    return Allocation(job, hosts, restarts_of(variables), gres)


def restarts_of(variables: Mapping[str, str]) -> int:
    """How often Slurm had started the job of these variables before."""
    count = variables.get("SLURM_RESTART_COUNT", "")
    return int(count) if count.isdecimal() else 0


def _slots(variables: Mapping[str, str], gpus: Sequence[int], job: str) -> list[int]:
    """Ranks for each host: its tasks; without an option for tasks, a rank for each GPU."""
    has_tasks = any(variables.get(name) for name in ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"))
    if not has_tasks and any(gpus):
        return [max(1, min(number, MAX_SLOTS)) for number in gpus]
    hosts = len(gpus)
    text = variables.get("SLURM_TASKS_PER_NODE", "1" if hosts == 1 else f"1(x{hosts})")
    numbers = repeated(text)
    if len(numbers) != hosts or not all(1 <= number <= MAX_SLOTS for number in numbers):
        raise UsageError(
            f"Slurm's allocation {job}: SLURM_TASKS_PER_NODE={text} does not fit its {hosts} hosts"
        )
    return numbers


def repeated(text: str) -> list[int]:
    """`2(x3),1` -> 2, 2, 2, 1; empty for any other text."""
    numbers: list[int] = []
    for part in text.split(","):
        match = _REPEATED.fullmatch(part)
        times = int(match[2] or 1) if match else 0
        if not match or len(numbers) + times > MAX_HOSTS:
            return []
        numbers += [int(match[1])] * times
    return numbers


def on_hosts(spec: LaunchSpec, allocation: Allocation) -> LaunchSpec:
    """The job on the hosts of the allocation; `UsageError` if they are too few."""
    if spec.min_hosts > len(allocation.hosts):
        raise UsageError(f"--min-hosts {spec.min_hosts}: Slurm gave {count(len(allocation.hosts), 'host')}")
    return dataclasses.replace(
        spec,
        hosts=allocation.hosts,
        min_hosts=spec.min_hosts or len(allocation.hosts),
    ).having(AllocationOptions(allocation.job))


def steps(python: str, allocation: Allocation) -> OpenPipe:
    """Opens an agent as a step of the allocation."""
    explain = partial(job_state.why_lost, allocation.job, allocation.restarts)
    command = from_home(python or "python3")
    return lambda host: SrunPipe(allocation.job, host, command, explain, allocation.gres.get(host.name))


def more_steps(mark: Mark, hosts: Sequence[str], attempt: int, python: str) -> OpenPipe:
    """Opens agents beside those of a job that runs. These need no GPUs."""
    gres = dict.fromkeys(hosts, "")
    return steps(python or mark.python, Allocation(mark.number, (), restarts=attempt, gres=gres))


def from_home(python: str) -> str:
    """The path as over SSH, where a relative path begins at the home: `~/venv/bin/python`.

    A step begins in the folder of its driver instead.
    """
    return f"~/{python}" if re.match(r"[^~/][^/]*/", python) else python
