"""The flags of `muster launch`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from ..plan.spec import LAUNCHERS, LauncherName
from .command import flag
from .options import BACKENDS, WITHOUT_LIMIT
from .shared import (
    EXCLUDE,
    HOSTS,
    HOSTS_ALSO,
    INCLUDE,
    LAUNCHER,
    NEW_RUN,
    PYTHON,
    RUNS_FOLDER,
    SLOTS,
    THIS_ALLOCATION,
    SlurmOptions,
)

PACKAGES = ("requirements", "python_version", "system_torch", "torch_backend")


@dataclass(frozen=True)
class LaunchOptions(SlurmOptions):
    """The flags of a launch."""

    groups: ClassVar = {
        "Most used": "hosts np gpus env requirements image detach max_restarts stall_timeout dry_run",
        "What runs": "script module args keep backend profile",
        "Where it runs": "include exclude network python runs",
        "How many ranks": "per_host slots",
        "Shared hosts": "wait",
        "Packages and container": "python_version system_torch torch_backend engine mount",
        "Survive failures": "min_hosts spares preload grace start_timeout",
        "Look at it": "rank no_record max_log notify timings",
        "Slurm and launchers": "slurm launcher",
    }

    hosts: str = flag("", HOSTS, "FILE", also=(*HOSTS_ALSO, "--machinefile"), replaces=("slurm",))
    np: int = flag(
        0, "number of ranks (default: all slots)", "N", least=1, also=("-n", "--ntasks", "--num-processes")
    )
    per_host: int = flag(
        0,
        "number of ranks on each host (default: its slots)",
        "N",
        least=1,
        also=("-N", "--ppn", "--npernode", "--nproc-per-node", "--ntasks-per-node", "--num-gpus"),
    )
    gpus: str = flag(
        "",
        "lease this number of GPUs on each host, with a rank for each; 0: none (default: one for each rank)",
        "N",
    )
    env: tuple[str, ...] = flag(
        (),
        "for every rank; NAME alone takes its value from this machine; may be repeated",
        "NAME=VALUE",
        also=("-x",),
    )
    requirements: str = flag(
        "",
        "requirements.txt, pyproject.toml or uv.lock: every host gets the packages, once",
        "FILE",
        replaces=("image", "engine", "mount"),
    )
    image: str = flag(
        "", "run the ranks in a container of this image on every host", "IMAGE", replaces=PACKAGES
    )
    detach: bool = flag(
        False,
        "run the job independently of this command: Muster's driver runs on the first host; with --slurm, "
        "as a batch job",
    )
    max_restarts: int = flag(
        0,
        "how often to start again after a failure, on the hosts that are still fit (default: 0)",
        "N",
        least=0,
    )
    stall_timeout: int = flag(
        0,
        "end the job if no rank makes progress for this many seconds (default: 0, never)",
        "SECONDS",
        least=0,
    )
    dry_run: bool = flag(False, "print every file and every command, and change nothing", also=("--dry",))
    profile: str = flag(
        "", "the profile in muster.toml or [tool.muster] whose values to use; its name alone does too", "NAME"
    )

    script: str = flag(
        "",
        "a Python script of the working tree to run in every rank",
        takes="positional",
        replaces=("module", "args"),
    )
    module: str = flag(
        "",
        "a Python module to run in every rank (default: muster.train)",
        "MODULE",
        also=("-m",),
        ends_options="-m",
        replaces=("script", "args"),
    )
    args: str = flag(
        "",
        'arguments of the program, quoted as in a shell: --args="--epochs 3"',
        "ARGS",
        takes="program",
        blank="no arguments",
    )
    keep: tuple[str, ...] = flag(
        (),
        "a folder of the program, such as checkpoints, that each host keeps from one launch to the next, at "
        "the same path; may be repeated",
        "PATH",
    )
    backend: str = flag(
        "auto",
        "auto (default), gloo, nccl, mpi or hccl; the program gets it as MUSTER_BACKEND",
        "NAME",
        choices=BACKENDS,
    )

    include: str = flag("", INCLUDE, "HOSTS")
    exclude: str = flag("", EXCLUDE, "HOSTS")
    network: str = flag(
        "",
        "network of the ranks: a CIDR, or an interface of the first host (default: what all reach)",
        "NETWORK",
        also=("--network-interface",),
    )
    python: str = flag("", PYTHON, "PATH", of_project=True)
    runs: str = flag(RUNS_FOLDER, NEW_RUN, "FOLDER")

    slots: str = flag("", SLOTS, "SLOTS")

    wait: str = flag(
        "",
        "wait for GPUs that others have leased, in the order of arrival; with SECONDS, no longer",
        "SECONDS",
        alone=WITHOUT_LIMIT,
        values=r"\d+",
    )

    python_version: str = flag(
        "", "the version of Python for these packages, 3.12 (default: the hosts' own Python)", "VERSION"
    )
    system_torch: bool = flag(False, "use the torch installed on the hosts")
    torch_backend: str = flag(
        "auto",
        "which wheels of torch: auto (default: by GPUs and NVIDIA's driver), none, cpu, cu128, ...",
        "NAME",
    )
    engine: str = flag(
        "", "docker, podman or apptainer starts the container (default: what each host has)", "NAME"
    )
    mount: tuple[str, ...] = flag(
        (), "a folder of the hosts for the container; may be repeated", "PATH[:INSIDE][:ro]"
    )

    min_hosts: int = flag(
        0,
        "start again only if at least this many hosts are fit (default: all of them)",
        "N",
        least=1,
        also=("--min-np",),
    )
    spares: int = flag(
        0,
        "connect, check and supply this many hosts beyond --np too, to replace hosts that fail (default: 0)",
        "N",
        least=1,
    )
    preload: bool = flag(
        False,
        "keep the imports of the ranks ready on each host while the job runs, so that a restart needs "
        "none; takes the memory of one more rank for each host, with torchrun of two",
    )
    grace: int = flag(
        30,
        "seconds from SIGTERM to SIGKILL for ranks that handle SIGTERM, and for processes that a rank leaves "
        "behind (default: 30)",
        "SECONDS",
        least=0,
    )
    start_timeout: int = flag(
        0,
        "seconds until every rank must have started (default: 60), and for Slurm to give hosts "
        "(default: no limit; a batch job waits as long as Slurm does)",
        "SECONDS",
        least=1,
    )

    rank: str = flag("", "show only these ranks here: 0,4-7; the logs have all", "RANKS")
    no_record: bool = flag(
        False,
        "record no collectives and open no console in the ranks; then muster why has only their stacks, "
        "and eval does not work",
    )
    max_log: str = flag(
        "500M",
        "limit for each log of the run here: 200M, 4G (default: 500M; 0: none); a longer log keeps its "
        "beginning and its last lines, and its host has all of it",
        "BYTES",
    )
    notify: str = flag(
        "",
        "at a stall and at the end, start this command with JSON on its standard input",
        "COMMAND",
    )
    timings: bool = flag(False, "at the end, print how long each part of the start took")

    slurm: str = flag(
        "",
        "take hosts from Slurm: salloc's options in one argument; without a value, this allocation",
        "OPTIONS",
        alone=THIS_ALLOCATION,
        replaces=("hosts",),
    )
    launcher: LauncherName | Literal[""] = flag("", LAUNCHER, "NAME", choices=LAUNCHERS)

    job: str = field(default="", kw_only=True)
    """The id of the job, if a program has chosen it (deploy/api). It is no flag, as the next one."""
    call: str = field(default="", kw_only=True)
    """The folder with the function that the ranks run, and with the module that runs it."""
