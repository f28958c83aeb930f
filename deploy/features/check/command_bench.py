"""`muster check --bench`: links and hosts, measured as jobs on the hosts that are fit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...cli.inventory import Inventory
from ...core.errors import MusterError, UnfitError
from ...core.hosts.hostfile import Host
from ...core.plan.spec import LauncherName
from ...core.text.terminal import harmless_lines
from ..bench import host_speeds as by_host
from ..bench import links_text
from ..bench.command_job import (
    HOSTS,
    LINKS,
    SHORT,
    BenchmarkRun,
    BenchOptions,
    made,
    one_rank_each,
    run_benchmark,
    spec_of,
)
from ..bench.host_speeds import SlowHost
from ..bench.link_speeds import Slow, worst_first
from ..bench.link_speeds import read as read_links
from .finding import Finding

_LINK = "look at cable, switch port, driver, MTU and other traffic; muster bench links measures them in full"
_HOST = "look at what else runs there, clock rate and cooling; muster bench hosts measures it in full"


def of_links(slow: Iterable[Slow]) -> Iterator[Finding]:
    """`bench.slow-link` for a link, `bench.slow-network` for a host with most of its links slow."""
    for each in slow:
        kind = "bench.slow-link" if each.where == "link" else "bench.slow-network"
        host, peer = each.source or each.target, each.target if each.where == "link" else ""
        text = links_text.describe(each).removeprefix(f"{host}: ")
        yield Finding(kind, host, "warning", text, _LINK, peer)


def of_hosts(slow: Iterable[SlowHost]) -> Iterator[Finding]:
    """`bench.slow-host`."""
    for each in slow:
        text = by_host.describe(each).removeprefix(f"{each.host}: ")
        yield Finding("bench.slow-host", each.host, "warning", text, _HOST)


def failed(host: str, reason: str) -> Finding:
    """`bench.failed`: the benchmark itself failed."""
    return Finding("bench.failed", host, "warning", reason, "muster bench links shows it with its logs")


@dataclass(frozen=True)
class BenchResult:
    """BenchResult, and findings about slow links and hosts."""

    findings: tuple[Finding, ...]
    text: str
    as_json: dict[str, Any]


def measure(
    inventory: Inventory, hosts: Sequence[Host], launcher: LauncherName, python: str, runs: Path
) -> BenchResult:
    """Measure hosts that are fit, in two jobs. A job that fails is a finding. One host has no links."""
    findings: list[Finding] = []
    texts: list[str] = []
    values: dict[str, Any] = {}

    def ran(tool: str) -> BenchmarkRun | None:
        options = BenchOptions(launcher=launcher, python=python)
        spec = spec_of(inventory, one_rank_each(hosts), tool, SHORT[tool], options)
        done = run_benchmark(spec, inventory, runs)
        if failure := done.result.failure:
            findings.append(failed(failure.host or "", f"{failure.headline} ({done.folder.path})"))
            return None
        return done

    with _noted(findings):
        if len(hosts) > 1 and (done := ran(LINKS)):
            links, problems = read_links(done.job, made(), done.hosts, done.printed)
            findings += [
                *of_links(worst_first(links)),
                *(failed(host, reason) for host, reason in problems.items()),
            ]
            texts += [*links_text.matrix(links, "bandwidth"), ""]
            values["links"] = asdict(links)
    with _noted(findings):
        if hosts and (done := ran(HOSTS)):
            speeds, problems = by_host.read(done.job, made(), done.hosts, done.printed)
            findings += of_hosts(by_host.slow_hosts(speeds))
            findings += [failed(host, reason) for host, reason in problems.items()]
            texts += by_host.figures_table(speeds)
            values["speeds"] = asdict(speeds)
    return BenchResult(tuple(findings), harmless_lines("\n".join([*texts, ""])), values)


@contextlib.contextmanager
def _noted(findings: list[Finding]) -> Iterator[None]:
    """Make a job that could not run a finding, so that the check still shows its other findings."""
    try:
        yield
    except MusterError as error:
        reasons = error.reasons if isinstance(error, UnfitError) else ((error.host, error.reason),)
        errors = [failed(host, reason) for host, reason in reasons]
        findings += [finding for finding in errors if finding not in findings]  # the other job had it too
