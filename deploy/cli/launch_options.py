"""The flags of `muster launch`."""

from __future__ import annotations

from dataclasses import dataclass

from .command import flag
from .inventory import HOSTS_FILE
from .shared import HELP, NEW_RUN, RUNS_FOLDER, SLOTS


@dataclass(frozen=True)
class LaunchOptions:
    """What the user asks for: a flag for each field, in the order of the help."""

    # Where
    hosts: str = flag(HOSTS_FILE, HELP["hosts"])
    slurm: str = flag(
        "", "take hosts from Slurm: salloc's options in one argument; without a value, this allocation"
    )
    slurm_login: str = flag(
        "", "a login node of Slurm, for --slurm from another machine: the driver runs there"
    )
    launcher: str = flag("mpirun", "mpirun (default), torchrun, or srun on hosts of Slurm")

    # What
    script: str = flag("", "a Python script of the working tree to run in every rank")
    module: str = flag("", "a Python module to run in every rank (default: muster.train)")
    args: str = flag(
        "", 'arguments of the program, quoted as in a shell: --args="--epochs 3"', blank="no arguments"
    )
    backend: str = flag(
        "auto", "auto (default), gloo, nccl, mpi or hccl; the program gets it as MUSTER_BACKEND"
    )
    np: int = flag(0, "number of ranks (default: all slots)", least=1)
    per_host: int = flag(0, "number of ranks on each host (default: its slots)", least=1)
    slots: str = flag("", SLOTS)
    env: tuple[str, ...] = flag(
        (), "NAME=VALUE for every rank, or NAME to pass on its value from this machine; may be repeated"
    )
    include: str = flag("", HELP["include"])
    exclude: str = flag("", HELP["exclude"])

    # How
    detach: bool = flag(
        False,
        "let the job go on when this command ends: its driver runs on the first host; with --slurm, "
        "as a batch job",
    )
    dry_run: bool = flag(False, "print every file and every command, and change nothing")
    record: bool = flag(
        False,
        "record the collectives of each rank, so that muster why can explain a hang "
        "(default: for muster.train, and with --stall-timeout)",
    )
    no_record: bool = flag(False, "record nothing")
    max_restarts: int = flag(
        0, "how often to start again after a failure, on the hosts that are still fit (default: 0)", least=0
    )
    min_hosts: int = flag(
        0, "start again only if at least this many hosts are fit (default: all of them)", least=1
    )
    start_timeout: int = flag(
        0,
        "seconds until every rank must have started (default: 60), and for Slurm to give hosts "
        "(default: no limit; a batch job waits as long as Slurm does)",
        least=1,
    )
    stall_timeout: int = flag(
        0, "end the job if no rank makes progress for this many seconds (default: 0, never)", least=0
    )
    max_log: str = flag(
        "8G",
        "limit for the logs of the run here, an equal share for each rank: 500M, 20G (default: 8G; 0: none); "
        "the last lines of each are kept beyond it, and the hosts keep all logs",
    )
    sample_every: int = flag(
        2, "seconds between two samples of each host, for muster top (default: 2; 0: none)", least=0
    )
    rank: str = flag("", "show only these ranks here: 0,4-7; the logs have all")
    network: str = flag(
        "", "network of the ranks: a CIDR, or an interface of the first host (default: what all reach)"
    )
    runs: str = flag(RUNS_FOLDER, NEW_RUN)
    python: str = flag("", HELP["python"])
    events: str = flag("", "write what happens as JSON lines to a file, or to standard output with -")

    # Packages, or a container that has them
    requirements: str = flag(
        "", "requirements.txt, pyproject.toml or uv.lock: every host gets the packages, once"
    )
    python_version: str = flag(
        "", "the version of Python for these packages, 3.12 (default: the hosts' own Python)"
    )
    system_torch: bool = flag(False, "torch is the hosts' own, not a wheel")
    torch_backend: str = flag(
        "auto", "which wheels of torch: auto (default: by GPUs and driver), none, cpu, cu128, ..."
    )
    relock: bool = flag(False, "choose the versions of the packages anew")
    image: str = flag("", "run the ranks in a container of this image on every host")
    engine: str = flag("", "docker, podman or apptainer starts the container (default: what each host has)")
    mount: tuple[str, ...] = flag(
        (), "PATH, PATH:INSIDE or PATH:INSIDE:ro of the hosts, for the container; may be repeated"
    )

    # Reports
    metrics: str = flag(
        "", "answer scrapes (OpenMetrics) at this port of this machine, or at ADDRESS:PORT, while it runs"
    )
    notify: str = flag(
        "", "at the end, post how the job ended as JSON to a URL, or give it to a command on its input"
    )
    timings: bool = flag(False, "at the end, print how long each part of the start took")

    @property
    def is_away(self) -> bool:
        """Whether the driver runs elsewhere, so that nobody reads its terminal."""
        return self.detach or bool(self.slurm_login)
