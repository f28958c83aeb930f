"""An agent as a step of Slurm, on a host of an allocation: srun's pipes in place of SSH."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import HostError
from ...hosts.hostfile import Host
from .. import bootstrap
from ..pipe import AGENT_KILLED, KILLED, PYTHON_FAILED, SEE_MEMORY, LostError
from .process import ProcessPipe


def command(job: str, host: Host, python: str) -> list[str]:
    """The argv of the step. It shares all that the allocation has on that host with the job's other steps.

    --overlap: beside other steps, with all CPUs and GPUs of the job there. --mpi=none: the launcher below the
    agent brings its own. --kill-on-bad-exit=0: another host's end is the driver's to judge.
    """
    options = [
        *(f"--jobid={job}", f"--nodelist={host.name}", "--nodes=1", "--ntasks=1", "--overlap"),
        *("--mpi=none", "--cpu-bind=none", "--kill-on-bad-exit=0", "--quiet", "--unbuffered"),
        "--job-name=muster-agent",
    ]
    return ["srun", *options, "sh", "-c", bootstrap.command(python)]


class SrunPipe(ProcessPipe):
    """An agent as the task of a step. `explain` says what Slurm knows about the end of a host."""

    leaves = False  # Slurm ends the step with the allocation; srun itself would wait for a lost node

    def __init__(self, job: str, host: Host, python: str, explain: Callable[[str], str]) -> None:
        self._name, self._explain = host.name, explain
        try:
            super().__init__(command(job, host, python))
        except OSError as error:
            raise HostError("slurm.no-srun", f"no srun here: {error.strerror}", "add it to PATH") from None

    def last_words(self, said: str = "") -> LostError:
        """Slurm's reason, or how Python ended there."""
        status, said = self.end(said)
        if reason := self._explain(self._name):
            return LostError(reason, "see scontrol show job, and ask the site's staff", kind="slurm.ended")
        if status == KILLED:
            return LostError(AGENT_KILLED, SEE_MEMORY, kind="agent.killed")
        if said.startswith(("srun: ", "slurmstepd: ")):
            return LostError(said, "Slurm started no agent there", kind="slurm.step-failed")
        return LostError(f"the agent ended with status {status}: {said}", PYTHON_FAILED, kind="python.failed")
