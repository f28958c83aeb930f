"""The flags of `muster launch`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from ..core.hosts.slots import SlotRule, slot_rule
from ..core.plan.flags import flag
from ..core.plan.spec import LAUNCHERS, LauncherName, RequestFlags
from ..features.all_options import FeatureOptions
from .option_values import ranks
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
class LaunchOptions(FeatureOptions, RequestFlags, SlurmOptions):
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
    dry_run: bool = flag(
        False, "print every file and every command, and change nothing", also=("--dry",), group="Most used"
    )
    profile: str = flag(
        "",
        "use the values of this profile in muster.toml or [tool.muster]",
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

    include: str = flag("", INCLUDE, "HOSTS", group="Where it runs")
    exclude: str = flag("", EXCLUDE, "HOSTS", group="Where it runs")
    python: str = flag("", PYTHON, "PATH", of_project=True, group="Where it runs")
    runs: str = flag(RUNS_FOLDER, NEW_RUN, "FOLDER", group="Where it runs")

    slots: SlotRule | None = flag(
        None,
        SLOTS,
        "SLOTS",
        parse=slot_rule,
        also=(
            "-N",
            "--per-host",
            "--ppn",
            "--npernode",
            "--num-gpus",
            *("--nproc-per-node", "--ntasks-per-node"),
        ),
        group="How many ranks",
    )

    min_hosts: int = flag(
        0,
        "start again only if at least this many hosts are fit (default: all of them)",
        "N",
        least=1,
        also=("--min-np",),
        group="Survive failures",
    )

    rank: frozenset[int] | None = flag(
        None, "show only these ranks here: 0,4-7; the logs have all", "RANKS", parse=ranks, group="Look at it"
    )

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
