"""`muster check --bench`: links and hosts in a short form, as findings and as text."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bench import hosts as by_host
from ..bench import links_text
from ..bench.findings import failed, of_hosts, of_links
from ..bench.links import Links
from ..bench.links import read as read_links
from ..bench.outliers import outliers
from ..bench.run import Ran, one_rank_each
from ..check.finding import Finding
from ..console.terminal import harmless_lines
from ..errors import MusterError, UnfitError
from ..hosts.hostfile import Host
from .benching import HOSTS, LINKS, SHORT, carry_out, job_on, made, settings_of
from .inventory import Inventory


@dataclass(frozen=True)
class Benched:
    """What was measured, and what is slow of it."""

    findings: tuple[Finding, ...]
    text: str
    as_json: dict[str, Any]
    links: tuple[Links, ...]


def benched(inventory: Inventory, hosts: Sequence[Host], launcher: str, python: str, runs: Path) -> Benched:
    """Measure hosts that are fit, in two jobs. A job that fails is a finding. One host has no links."""
    findings: list[Finding] = []
    texts: list[str] = []
    found: tuple[Links, ...] = ()
    values: dict[str, Any] = {}

    def ran(tool: str) -> Ran | None:
        settings = settings_of(launcher, python=python)
        job = job_on(inventory, one_rank_each(hosts), tool, SHORT[tool], settings)
        done = carry_out(job, inventory, runs)
        if failure := done.result.failure:
            findings.append(failed(failure.host or "", f"{failure.headline} ({done.folder.path})"))
            return None
        return done

    with _noted(findings):
        if len(hosts) > 1 and (done := ran(LINKS)):
            links, problems = read_links(done.result.plan.spec.job, made(), done.hosts, done.printed)
            slow = [each for quantity in links_text.QUANTITIES for each in outliers(links, quantity)]
            findings += [*of_links(slow), *(failed(host, reason) for host, reason in problems.items())]
            texts += [*links_text.matrix(links, "bandwidth"), ""]
            values["links"], found = links.as_json(), (links,)
    with _noted(findings):
        if hosts and (done := ran(HOSTS)):
            speeds, problems = by_host.read(done.result.plan.spec.job, made(), done.hosts, done.printed)
            findings += of_hosts(by_host.slow_hosts(speeds))
            findings += [failed(host, reason) for host, reason in problems.items()]
            texts += by_host.figures_table(speeds)
            values["speeds"] = speeds.as_json()
    return Benched(tuple(findings), harmless_lines("\n".join([*texts, ""])), values, found)


@contextlib.contextmanager
def _noted(findings: list[Finding]) -> Iterator[None]:
    """Make a job that could not run a finding, so that what else the check has found is still shown."""
    try:
        yield
    except MusterError as error:
        reasons = error.reasons if isinstance(error, UnfitError) else ((error.host, error.reason),)
        found = [failed(host, reason) for host, reason in reasons]
        findings += [finding for finding in found if finding not in findings]  # the other job had it too
