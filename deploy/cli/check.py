"""`muster check`: whether hosts are fit."""

from __future__ import annotations

import contextlib
import sys
from json import dumps
from pathlib import Path

from invoke import Context, Exit

from ..check import check as judge
from ..check import report as check_report
from ..check import unfit
from ..check.examine import examine
from ..connect.cluster import Cluster
from ..connect.opener import opener
from ..errors import UnfitError
from ..hosts import hostfile
from ..image.versions import load
from ..plan.launcher import LAUNCHERS
from ..plan.placement import used_hosts
from ..plan.spec import LaunchSpec, Program
from . import options as request
from .command import command
from .shared import HELP, explained

_HELP = {
    **HELP,
    "launcher": "the launcher for which the hosts must be fit: mpirun (default) or torchrun",
    "json": "print JSON for programs: all measurements, and every finding with its id",
}


@command(help=_HELP)
def check(  # noqa: PLR0917  # fab makes a flag of each parameter
    context: Context,
    hosts: str = "hosts.txt",
    launcher: str = "mpirun",
    include: str = "",
    exclude: str = "",
    python: str = "",
    json: bool = False,
) -> None:
    """Check whether every host is fit for a launch; if not, say which host is not and what fixes it."""
    with explained(context):
        named = request.one_of("--launcher", launcher, LAUNCHERS)
        chosen = hostfile.select(hostfile.load(Path(hosts)), include, exclude)
        used_hosts(chosen, LaunchSpec(job="", program=Program(), launcher=named))
        with contextlib.closing(Cluster(chosen, opener(Path(hosts), python))) as cluster:
            examination = examine(cluster)
        findings = judge(chosen, examination, named, load())
        if json:
            text = dumps(check_report.as_json(chosen, examination, findings, named), indent=2) + "\n"
        else:
            text = check_report.as_text(chosen, examination, findings)
        sys.stdout.write(text)
        if unfit(findings):
            raise Exit(code=UnfitError.exit_status)
