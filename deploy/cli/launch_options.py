"""The flags of `muster launch`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal

from ..core.hosts.slots import SlotRule, slot_rule
from ..core.plan.flags import flag
from ..core.plan.spec import LAUNCHERS, MAX_LOG, LauncherName
from ..features.all_options import FeatureOptions
from .option_values import BACKENDS, network, ranks, size
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


@dataclass(frozen=True)
class LaunchOptions(FeatureOptions, SlurmOptions):
    """The flags of a launch."""

    groups: ClassVar = dict.fromkeys(
        (
            *("Most used", "What runs", "Where it runs", "How many ranks", "Shared hosts"),
            *("Packages and container", "Survive failures", "Look at it", "Slurm and launchers"),
        ),
        "",
    )

    hosts: str = flag(
        "", HOSTS, "FILE", also=(*HOSTS_ALSO, "--machinefile"), replaces=("slurm",), group="Most used"
    )
    np: int = flag(
        0,
        "number of ranks (default: all slots)",
        "N",
        least=1,
        also=("-n", "--ntasks", "--num-processes"),
        group="Most used",
    )
    per_host: int = flag(
        0,
        "number of ranks on each host (default: its slots)",
        "N",
        least=1,
        also=("-N", "--ppn", "--npernode", "--nproc-per-node", "--ntasks-per-node", "--num-gpus"),
        group="How many ranks",
    )
    env: tuple[str, ...] = flag(
        (),
        "a variable of every rank; NAME alone takes its value from this machine; may be repeated",
        "NAME=VALUE",
        also=("-x",),
        group="Most used",
    )
    detach: bool = flag(
        False,
        "let the job continue without this command: Muster's driver, which watches it, runs on the first "
        "host; with --slurm, in a batch job",
        group="Most used",
    )
    max_restarts: int = flag(
        0,
        "how often to start again after a failure, on the hosts that still work (default: 0)",
        "N",
        least=0,
        group="Most used",
    )
    dry_run: bool = flag(
        False, "print every file and every command, and change nothing", also=("--dry",), group="Most used"
    )
    profile: str = flag(
        "",
        "use the values of this profile in muster.toml or [tool.muster]; muster launch NAME does the same",
        "NAME",
        group="What runs",
    )

    script: str = flag(
        "",
        "a Python script of the working tree to run in every rank",
        takes="positional",
        replaces=("module", "args"),
        group="What runs",
    )
    module: str = flag(
        "",
        "a Python module to run in every rank (default: muster.train)",
        "MODULE",
        also=("-m",),
        ends_options="-m",
        replaces=("script", "args"),
        group="What runs",
    )
    args: str = flag(
        "",
        'arguments of the program, quoted as in a shell: --args="--epochs 3"',
        "ARGS",
        takes="program",
        blank="no arguments",
        group="What runs",
    )
    backend: str = flag(
        "auto",
        "backend of torch.distributed: auto (default), gloo, nccl, mpi or hccl; the program gets it as "
        "MUSTER_BACKEND",
        "NAME",
        choices=BACKENDS,
        group="What runs",
    )

    include: str = flag("", INCLUDE, "HOSTS", group="Where it runs")
    exclude: str = flag("", EXCLUDE, "HOSTS", group="Where it runs")
    network: str = flag(
        "",
        "network of the ranks: a CIDR, or an interface of the first host (default: one that all hosts reach)",
        "NETWORK",
        also=("--network-interface",),
        parse=network,
        group="Where it runs",
    )
    python: str = flag("", PYTHON, "PATH", of_project=True, group="Where it runs")
    runs: str = flag(RUNS_FOLDER, NEW_RUN, "FOLDER", group="Where it runs")

    slots: SlotRule | None = flag(None, SLOTS, "SLOTS", parse=slot_rule, group="How many ranks")

    min_hosts: int = flag(
        0,
        "start again only if at least this many hosts are fit (default: all of them)",
        "N",
        least=1,
        also=("--min-np",),
        group="Survive failures",
    )
    spares: int = flag(
        0,
        "keep this many more hosts than --np needs ready, to replace hosts that fail (default: 0)",
        "N",
        least=1,
        group="Survive failures",
    )
    grace: int = flag(
        30,
        "seconds from SIGTERM to SIGKILL for ranks that handle SIGTERM, and for processes that a rank leaves "
        "behind (default: 30)",
        "SECONDS",
        least=0,
        group="Survive failures",
    )
    start_timeout: int = flag(
        0,
        "seconds until every rank must have started (default: 60); also until Slurm must have given hosts, "
        "for which there is no limit without this flag",
        "SECONDS",
        least=1,
        group="Survive failures",
    )

    rank: frozenset[int] | None = flag(
        None, "show only these ranks here: 0,4-7; the logs have all", "RANKS", parse=ranks, group="Look at it"
    )
    max_log: int = flag(
        MAX_LOG,
        "limit for each log of the run here: 200M, 4G (default: 500M; 0: none); a longer log keeps its "
        "beginning and its last lines, and its host has all of it",
        "BYTES",
        parse=partial(size, "--max-log"),
        group="Look at it",
    )
    timings: bool = flag(False, "at the end, print how long each part of the start took", group="Look at it")

    slurm: str = flag(
        "",
        "take hosts from Slurm: salloc's options in one argument; without a value, this allocation",
        "OPTIONS",
        alone=THIS_ALLOCATION,
        replaces=("hosts",),
        group="Slurm and launchers",
    )
    launcher: LauncherName | Literal[""] = flag(
        "", LAUNCHER, "NAME", choices=LAUNCHERS, group="Slurm and launchers"
    )

    job: str = field(default="", kw_only=True)
    """The id of the job, if a program has chosen it (deploy/api). It is no flag."""
    call: str = field(default="", kw_only=True)
    """The folder with the function that the ranks run, and with the module that runs it."""
