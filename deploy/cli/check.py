"""`muster check`: whether hosts are fit."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING

from invoke import Context, Exit

from ..check import check as judge
from ..check import report as check_report
from ..check import unfit
from ..check.examine import QUESTIONS, examine
from ..check.finding import Finding, of_error
from ..check.measurements import Examination
from ..check.slurm_site import judge as judge_site
from ..connect.cluster import Cluster
from ..console.progress import MANY, Progress
from ..errors import UnfitError
from ..hosts.hostfile import Host
from ..hosts.slots import SlotRule, counted_slots, slot_rule
from ..image.versions import load
from ..plan.launcher import LAUNCHERS, LauncherName
from ..plan.placement import used_hosts
from ..plan.spec import LaunchSpec, Program
from . import options as request
from .command import command
from .inventory import HERE, allocated, of_file, salloc_words
from .shared import HELP, SLOTS, explained

if TYPE_CHECKING:
    from .check_bench import Benched

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
def check(  # noqa: PLR0917  # fab makes a flag of each parameter
    context: Context,
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
    runs: str = "runs",
) -> None:
    """Check whether every host is fit for a launch; if not, say which host is not and what fixes it."""
    with explained(context), contextlib.ExitStack() as stack:
        named, measured = request.one_of("--launcher", launcher, LAUNCHERS), None
        rule = slot_rule(slots) if slots else None
        site = _judge_site(slurm, named) if slurm else ()
        if slurm and (unfit(site) or not _has_hosts(slurm)):
            chosen: tuple[Host, ...] = ()
            examination, findings = Examination({}, {}), site
        else:
            if slurm:
                inventory = stack.enter_context(allocated(slurm, include, exclude, python, None))
            else:
                inventory = of_file(hosts, include, exclude, python)
            chosen = inventory.hosts
            wanted = LaunchSpec(job="", program=Program(), launcher=named, allocation=inventory.allocation)
            used_hosts(chosen, wanted)
            with contextlib.closing(Cluster(chosen, inventory.open_pipe)) as cluster:
                examination = _examined(cluster)
            chosen, uncounted = _counted(chosen, examination, rule) if rule else (chosen, ())
            findings = (*site, *uncounted, *judge(chosen, examination, named, load()))
            if bench:
                from .check_bench import benched  # noqa: PLC0415  # most checks measure nothing

                fit = [host for host in chosen if host.name not in unfit(findings)]
                measured = benched(inventory, fit, launcher, python, Path(runs))
                findings = (*findings, *measured.findings)
        if html:
            _write_page(Path(html), Path(hosts), chosen, examination, findings, named, measured)
        if json:
            found = check_report.as_json(chosen, examination, findings, named)
            text = dumps({**found, **(measured.as_json if measured else {})}, indent=2) + "\n"
        else:
            text = check_report.as_text(chosen, examination, findings)
            text = f"{measured.text}\n{text}" if measured else text
        sys.stdout.write(text)
        if unfit(findings):
            raise Exit(code=UnfitError.exit_status)


def _counted(
    hosts: Sequence[Host], examination: Examination, rule: SlotRule
) -> tuple[tuple[Host, ...], list[Finding]]:
    """The hosts with the slots that `--slots` gives them, and a finding for each with nothing to count."""
    facts = {name: measured.facts for name, measured in examination.hosts.items()}
    counted, errors = counted_slots(hosts, facts, rule)
    return counted, [of_error(name, error) for name, error in errors.items()]


def _examined(cluster: Cluster) -> Examination:
    """What many hosts answer comes over some seconds: show how much of it has come."""
    least = MANY * QUESTIONS
    with Progress(sys.stderr, "checking", unit="answers", least=least) as progress:
        return examine(cluster, progress.show)


def _write_page(  # noqa: PLR0917  # what a check knows
    page: Path,
    hosts_file: Path,
    hosts: Sequence[Host],
    examination: Examination,
    findings: Sequence[Finding],
    launcher: str,
    measured: Benched | None,
) -> None:
    """Write the page of a check, with the links that were measured now, or else last."""
    from ..bench import kept  # noqa: PLC0415  # only a page needs these modules
    from ..view.page.cluster_page import cluster_page  # noqa: PLC0415
    from ..view.page.render import render  # noqa: PLC0415
    from ..view.page.write import write_page  # noqa: PLC0415

    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    links = measured.links if measured else kept.newest_links(kept.folder_beside(hosts_file))
    shown = cluster_page(hosts, examination, findings, launcher, made, links)
    write_page(render("cluster.html", page=shown), page)


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
    named: str = parser.parse_known_args(words)[0].partition
    return "" if "," in named else named
