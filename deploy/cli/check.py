"""`muster check`: whether hosts are fit."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..check import unfit
from ..check.finding import Finding
from ..check.slurm_site import judge as judge_site
from ..errors import UnfitError, UsageError
from ..hosts.slots import slot_rule
from ..plan.launcher import LAUNCHERS, LauncherName
from . import options as request
from .checked import Checked, checked, with_bench
from .command import Exit, command
from .inventory import HERE, inventory_of, require_one_source, salloc_words
from .shared import HELP, RUNS_FOLDER, SLOTS, explained

_HELP = {
    **HELP,
    "slurm": "check a Slurm site, and the hosts that Slurm gives for these options of salloc",
    "launcher": "the launcher for which hosts must be fit: mpirun (default), torchrun, or srun with --slurm",
    "slots": SLOTS,
    "bench": "also measure links and hosts in a short form, each as a job: what is slow is a warning",
    "runs": "the folder in which to make the folders of these jobs (default: runs)",
    "html": "also write a page to this file: every host, what to do, and the links that bench links measured",
    "json": "print JSON for programs: all measurements, and every finding with its id",
}


@command(help=_HELP, alone={"--slurm": HERE})
def check(  # noqa: PLR0917  # a flag for each parameter
    hosts: str = "hosts.txt",
    slurm: str = "",
    launcher: str = "mpirun",
    slots: str = "",
    include: str = "",
    exclude: str = "",
    python: str = "",
    html: str = "",
    bench: bool = False,
    json: bool = False,
    runs: str = RUNS_FOLDER,
) -> None:
    """Check whether every host is fit for a launch; if not, say which host is not and what fixes it."""
    with explained(), contextlib.ExitStack() as stack:
        require_one_source(hosts, slurm)
        if runs != RUNS_FOLDER and not bench:
            raise UsageError(f"--runs {runs} is for the jobs of --bench; leave it out, or add --bench")
        named = request.one_of("--launcher", launcher, LAUNCHERS)
        rule = slot_rule(slots) if slots else None
        site = _judge_site(slurm, named) if slurm else ()
        if slurm and (unfit(site) or not _has_hosts(slurm)):
            done = Checked(named, site)
        else:
            inventory = stack.enter_context(inventory_of(hosts, slurm, include, exclude, python))
            done = checked(inventory, named, rule, site)
            done = with_bench(done, inventory, python, Path(runs)) if bench else done
        if html:
            done.write_page(Path(html), Path(hosts))
        sys.stdout.write(done.as_json() if json else done.as_text())
        if done.unfit:
            raise Exit(code=UnfitError.exit_status)


def _judge_site(slurm: str, launcher: LauncherName) -> tuple[Finding, ...]:
    """What is wrong with the Slurm site of this machine, for these words of salloc."""
    from ..slurm.site import site  # noqa: PLC0415  # most checks need no Slurm

    return judge_site(site(_partition([] if slurm == HERE else salloc_words(slurm))), launcher)


def _has_hosts(slurm: str) -> bool:
    """Whether there are words to ask Slurm for hosts with, or an allocation that is HERE."""
    return slurm != HERE or "SLURM_JOB_ID" in os.environ


def _partition(words: Sequence[str]) -> str:
    """The partition that options of salloc name; empty for the default one, or several."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("-p", "--partition", default="")
    try:
        named: str = parser.parse_known_args(words)[0].partition
    except argparse.ArgumentError:  # salloc will say what it lacks
        return ""
    return "" if "," in named else named
