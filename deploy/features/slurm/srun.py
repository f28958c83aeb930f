"""An agent as a step of Slurm, on a host of an allocation: srun's pipes in place of SSH."""

from __future__ import annotations

import os
from collections.abc import Callable

from ...core.connect import bootstrap
from ...core.connect.pipe import AGENT_KILLED, KILLED, PYTHON_FAILED, SEE_MEMORY, EndedError, LostError
from ...core.connect.transports.process import ProcessPipe
from ...core.errors import HostError
from ...core.hosts.hostfile import Host
from ...core.wire.variables import for_slurm

WITH_PATH = 'PATH="${PATH:-/usr/local/bin:/usr/bin:/bin}"; export PATH;'


def command(job: str, host: Host, python: str) -> list[str]:
    """The argv of the step. It shares the allocation's resources on that host with the job's other steps.

    --overlap: beside other steps, with all CPUs and GPUs of the job there. --mpi=none: the launcher below the
    agent brings its own. --kill-on-bad-exit=0: the driver judges the end of another host. After
    sbatch --export=NIL there is no PATH: neither to find sh on, nor for Python to find itself on.
    """
    options = [
        *(f"--jobid={job}", f"--nodelist={host.name}", "--nodes=1", "--ntasks=1", "--overlap"),
        *("--mpi=none", "--cpu-bind=none", "--kill-on-bad-exit=0", "--quiet", "--unbuffered"),
        *("--export=ALL", "--job-name=muster-agent"),
    ]
    return ["srun", *options, "/bin/sh", "-c", f"{WITH_PATH} exec {bootstrap.command(python)}"]


class SrunPipe(ProcessPipe):
    """An agent as the task of a step. `explain` returns Slurm's reason for the end of a host."""

    leaves = False  # Slurm ends the step with the allocation; srun itself would wait for a lost node

    def __init__(self, job: str, host: Host, python: str, explain: Callable[[str], str]) -> None:
        self._name, self._explain = host.name, explain
        try:
            super().__init__(command(job, host, python), for_slurm(os.environ))
        except OSError as error:
            raise HostError("slurm.no-srun", f"no srun here: {error.strerror}", "add it to PATH") from None

    def last_words(self, printed: str = "") -> LostError:
        """Slurm's reason, or how Python ended there."""
        status, last_line = self.end(printed)
        if reason := self._explain(self._name):
            return EndedError(reason, "see scontrol show job, and ask the site's staff", kind="slurm.ended")
        if status == KILLED:
            return EndedError(AGENT_KILLED, SEE_MEMORY, kind="agent.killed")
        if last_line.startswith(("srun: ", "slurmstepd: ")):
            return EndedError(last_line, "Slurm started no agent there", kind="slurm.step-failed")
        text = f"the agent ended with status {status}: {last_line}"
        return EndedError(text, PYTHON_FAILED, kind="python.failed")
