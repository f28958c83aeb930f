"""What `muster check` found, as a value: made from hosts, then shown as text, as JSON or as a page."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING

from ..check import check as judge
from ..check import report
from ..check import unfit as unfit_of
from ..check.examine import QUESTIONS, examine
from ..check.finding import Finding, of_error
from ..check.measurements import Examination
from ..connect.cluster import Cluster
from ..console.progress import MANY, Progress
from ..hosts.hostfile import Host
from ..hosts.slots import SlotRule, counted_slots
from ..image.versions import load
from ..plan.launcher import LauncherName
from ..plan.placement import place
from ..plan.spec import LaunchSpec, Program
from .inventory import Inventory

if TYPE_CHECKING:
    from .check_bench import Benched


@dataclass(frozen=True)
class Checked:
    """Hosts, what was measured on them, and what follows from it."""

    launcher: LauncherName
    findings: tuple[Finding, ...]
    hosts: tuple[Host, ...] = ()
    examination: Examination = field(default_factory=lambda: Examination({}, {}))
    measured: Benched | None = None
    """With `--bench`: links and hosts."""

    @property
    def unfit(self) -> set[str]:
        """The hosts, or the site, that cannot be used."""
        return unfit_of(self.findings)

    def as_text(self) -> str:
        """For people."""
        text = report.as_text(self.hosts, self.examination, self.findings)
        return f"{self.measured.text}\n{text}" if self.measured else text

    def as_json(self) -> str:
        """For programs."""
        found = report.as_json(self.hosts, self.examination, self.findings, self.launcher)
        return dumps({**found, **(self.measured.as_json if self.measured else {})}, indent=2) + "\n"

    def write_page(self, page: Path, hosts_file: Path) -> None:
        """Write the page of a check, with the links that were measured now, or else last."""
        from ..bench import kept  # noqa: PLC0415  # only a page needs these modules
        from ..view.page.cluster_page import cluster_page  # noqa: PLC0415
        from ..view.page.render import render  # noqa: PLC0415
        from ..view.page.write import write_page  # noqa: PLC0415

        made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        links = self.measured.links if self.measured else kept.newest_links(kept.folder_beside(hosts_file))
        shown = cluster_page(self.hosts, self.examination, self.findings, self.launcher, made, links)
        write_page(render("cluster.html", page=shown), page)


def checked(
    inventory: Inventory, launcher: LauncherName, rule: SlotRule | None, site: Sequence[Finding]
) -> Checked:
    """Examine the hosts and judge them. `rule`: of `--slots`; `site`: what is wrong with their Slurm site."""
    hosts = inventory.hosts
    place(hosts, LaunchSpec(job="", program=Program(), launcher=launcher, allocation=inventory.allocation))
    with contextlib.closing(Cluster(hosts, inventory.open_pipe)) as cluster:
        examination = _examined(cluster)
    hosts, uncounted = _counted(hosts, examination, rule) if rule else (hosts, [])
    findings = (*site, *uncounted, *judge(hosts, examination, launcher, load()))
    return Checked(launcher, findings, hosts, examination)


def with_bench(done: Checked, inventory: Inventory, python: str, runs: Path) -> Checked:
    """The same with links and hosts measured, each as a job on the hosts that are fit."""
    from .check_bench import benched  # noqa: PLC0415  # most checks measure nothing

    fit = [host for host in done.hosts if host.name not in done.unfit]
    measured = benched(inventory, fit, done.launcher, python, runs)
    return replace(done, findings=(*done.findings, *measured.findings), measured=measured)


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
