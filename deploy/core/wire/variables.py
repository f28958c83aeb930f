"""The environment variables by which a program finds its rank and its rendezvous.

Muster and its launchers set them in every rank, so a user cannot. Muster, or an agent, may itself run in a
rank of torchrun, mpirun or srun. The variables of that outer launcher must not reach a rank of Muster, whose
program would take the position for its own.
"""

from __future__ import annotations

# Of every launcher, of torchrun, of mpirun, of srun, and of Muster.
OF_RANKS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("TORCHELASTIC_*", "TORCH_ELASTIC_WORKER_IDENTICAL"),
    *("OMPI_COMM_WORLD_*", "OMPI_WORLD_*", "OMPI_UNIVERSE_SIZE", "PMIX_*", "PMI_*"),
    *("SLURM_*", "SLURMD_*", "SRUN_*"),
    "MUSTER_*",
)
"""Names, and beginnings of names with a star."""
SETTINGS = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_")
"""The beginnings of names that tune Open MPI. A user may set them."""
# Other variables of Open MPI and of the session, from a host's login or an outer launcher, are foreign too.
FOREIGN = ("OMPI_", "PRTE_", "SSH_")


def is_of_ranks(name: str) -> bool:
    """Whether Muster or its launcher sets this variable in every rank."""
    return not name.startswith(SETTINGS) and any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern for pattern in OF_RANKS
    )


def is_foreign(name: str) -> bool:
    """Whether this variable of a host's login must not reach a rank."""
    return name.startswith((*FOREIGN, *SETTINGS)) or is_of_ranks(name)
