"""The environment variables with a rank's position and its rendezvous.

Muster and its launchers set them, so a user cannot, and the values of a host or of an outer launcher must not
reach a rank.
"""

from __future__ import annotations

from collections.abc import Mapping

OF_RANKS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("TORCHELASTIC_*", "TORCH_ELASTIC_WORKER_IDENTICAL"),
    *("OMPI_COMM_WORLD_*", "OMPI_WORLD_*", "OMPI_UNIVERSE_SIZE", "PMIX_*", "PMI_*"),
    *("SLURM_*", "SLURMD_*", "SRUN_*", "MUSTER_*"),
)
"""Names, and beginnings of names with a star."""
SETTINGS = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_")
"""The beginnings of names that tune Open MPI. A user may set them."""
# Other variables of Open MPI and of the session, from a host's login or an outer launcher, are foreign too.
FOREIGN = ("OMPI_", "PRTE_", "SSH_")

SLURM_SITES = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT"})
"""Where Slurm's programs find their site, and how they log in to it."""
# Variables that Slurm's programs read as options, from a user's shell or an outer job: srun(1), salloc(1),
# sbatch(1), squeue(1), scancel(1), INPUT ENVIRONMENT VARIABLES. Those of salloc and sbatch remain, because
# users choose a partition or account by them, except those that change how their job runs.
_OPTIONS_OF_SLURM = (
    *("SLURM_", "SLURMD_", "SRUN_", "SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_", "SACCT_", "PMI_"),
    *("SALLOC_KILL_CMD", "SALLOC_DEBUG", "SBATCH_DEBUG", "SBATCH_ARRAY_INX", "SBATCH_CONTAINER"),
    *("SBATCH_ERROR", "SBATCH_EXPORT", "SBATCH_GET_USER_ENV", "SBATCH_INPUT"),
    *("SBATCH_NO_KILL", "SBATCH_WAIT"),
)


def for_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for one of Slurm's programs: only its arguments are options."""
    return {
        name: value
        for name, value in environ.items()
        if name in SLURM_SITES or not name.startswith(_OPTIONS_OF_SLURM)
    }


def is_of_ranks(name: str) -> bool:
    """Whether Muster or its launcher sets this variable in every rank."""
    return not name.startswith(SETTINGS) and any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern for pattern in OF_RANKS
    )


def is_foreign(name: str) -> bool:
    """Whether this variable of a host's login must not reach a rank."""
    return name.startswith((*FOREIGN, *SETTINGS)) or is_of_ranks(name)
