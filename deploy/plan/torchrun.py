"""torchrun: one on every host, with its place in the job and the rendezvous on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import HostError, UsageError
from ..hosts.facts import Facts, Rendezvous
from .layout import Layout


def command(
    *,
    python: str,
    job: str,
    hosts: int,
    host_index: int,
    ranks_per_host: int,
    rendezvous: Rendezvous,
    rank: Sequence[str],
) -> tuple[str, ...]:
    """The argv of torchrun for one host.

    Static rendezvous: the driver knows every host, so nothing has to be discovered. The run id is the job's,
    because two jobs with one id at one endpoint merge into one (torch.distributed.run, "Definitions").
    Restarts are the driver's: an agent would restart its own host only.
    """
    return (
        python,
        *("-m", "torch.distributed.run"),
        *("--nnodes", str(hosts)),
        *("--node-rank", str(host_index)),
        *("--nproc-per-node", str(ranks_per_host)),
        *("--rdzv-backend", "static"),
        *("--rdzv-id", job),
        *("--master-addr", rendezvous.address),
        *("--master-port", str(rendezvous.port)),
        *("--max-restarts", "0"),
        "--no-python",
        *rank,
    )


def unfit_for_torch(facts: Facts) -> HostError | None:
    """Why a host cannot run a PyTorch program."""
    if facts.torch is None:
        text = f"{facts.executable} has no torch"
        return HostError("torch.missing", text, "install it, or name another interpreter with --python")
    return None


class Torchrun:
    """torchrun on every host starts the ranks of that host."""

    uses_mpi = False

    def title(self, head: Facts) -> str:
        """`torchrun (torch 2.6.0)`."""
        return f"torchrun (torch {head.torch})"

    def unfit(self, facts: Facts) -> HostError | None:
        """No torch."""
        return unfit_for_torch(facts)

    def differences(self, facts: Mapping[str, Facts]) -> list[tuple[str, str]]:
        """None that keeps it from starting."""
        return []

    def check_shape(self, backend: str, ranks: Mapping[str, int], *, fixed: bool) -> None:
        """No MPI, and the same number of ranks on every host."""
        if backend == "mpi":
            raise UsageError("--backend mpi needs MPI to start the ranks; use --launcher mpirun")
        if len(set(ranks.values())) > 1:
            listed = ", ".join(f"{name} {number}" for name, number in ranks.items())
            equal = (
                "give an --np that fills each host alike"
                if fixed
                else f"give --per-host {min(ranks.values())}"
            )
            raise UsageError(
                f"torchrun starts the same number of ranks on every host, got {listed}; "
                f"{equal}, or use --launcher mpirun"
            )

    def command(self, host: str, layout: Layout) -> tuple[str, ...] | None:
        """torchrun on each host."""
        return command(
            python=layout.facts[host].executable,
            job=layout.job,
            hosts=len(layout.ranks),
            host_index=list(layout.ranks).index(host),
            ranks_per_host=layout.ranks[host],
            rendezvous=layout.rendezvous,
            rank=layout.program,
        )

    def environment(self, host: str, layout: Layout) -> dict[str, str]:
        """Nothing of its own."""
        return {}
