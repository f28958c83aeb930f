"""srun: Slurm starts all ranks as one step of the allocation, and gives them PMIx.

Never pmi2, with which each rank of Open MPI 5 gets a world of size one; never --oversubscribe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ..common.paths import JobPaths
from ..errors import HostError
from ..hosts.facts import Facts
from . import openmpi
from .placement import Layout

OUTSIDE = (
    '--launcher srun starts the ranks as a step of Slurm: give --slurm "-N 2 -t 60", or start it inside of '
    "an allocation; elsewhere use mpirun or torchrun"
)


class Srun:
    """srun on the head starts the ranks of all hosts, below Slurm's daemons."""

    uses_mpi = True

    def title(self, head: Facts) -> str:
        """`srun (PMIx)`."""
        return "srun (PMIx)"

    def unfit(self, facts: Facts) -> HostError | None:
        """None: srun needs only Slurm, and not every program needs MPI."""
        return None

    def differences(self, facts: Mapping[str, Facts]) -> list[tuple[str, str]]:
        """srun starts the same path everywhere, with the head's environment: homes must have one path."""
        homes = Counter(host_facts.home for host_facts in facts.values())
        usual = homes.most_common(1)[0][0] if homes else ""
        return [
            (host, f"its home is {host_facts.home}, elsewhere it is {usual}; srun needs one path: use mpirun")
            for host, host_facts in facts.items()
            if host_facts.home != usual
        ]

    def check_shape(self, backend: str, ranks: Mapping[str, int]) -> None:
        """Accept everything: srun starts any numbers of ranks."""

    def command(self, host: str, layout: Layout) -> tuple[str, ...] | None:
        """The argv of srun for the head; None for other hosts.

        --distribution=arbitrary: the list of hosts has a name for each rank, in the order of the ranks; srun
        takes no --nodes with it.
        --overlap: beside the steps of the agents, with all resources of the job. --wait=0: a rank that ends
        well long before the others does not end them. muster-rank is looked up on PATH, the same on every
        host.
        """
        if host != layout.head:
            return None
        names = ",".join(name for name, number in layout.ranks.items() for _ in range(number))
        return (
            "srun",
            f"--jobid={layout.spec.allocation}",
            f"--ntasks={sum(layout.ranks.values())}",
            *("--distribution=arbitrary", f"--nodelist={names}"),
            *("--overlap", "--mpi=pmix", "--cpu-bind=none", "--export=ALL"),
            *("--kill-on-bad-exit=1", "--wait=0", "--input=none", "--unbuffered"),
            "--job-name=muster-ranks",
            *layout.rank_command(mpi=self.uses_mpi),
        )

    def environment(self, host: str, layout: Layout) -> dict[str, str]:
        """The folder of its host's agent for a rank (deploy/agent/job/rank.py), and the variables for MPI."""
        folder = JobPaths.of(layout.facts[host].home, layout.spec.job).folder
        return {"MUSTER_STEP": folder, **openmpi.of_ranks(host, layout)}
