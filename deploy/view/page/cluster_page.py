"""The page of a cluster as a value: every host with its measurements, findings and remedies. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...bench.links import Links
from ...check.finding import Finding
from ...check.judge import unfit
from ...check.measurements import Measured, Measurements
from ...check.report import COLUMNS, cells, folded, summary, verdict
from ...console.text import count
from ...hosts.hostfile import Host
from .links_page import LinksSection, section


@dataclass(frozen=True)
class HostRow:
    """One host of the table."""

    cells: tuple[str, ...]
    verdict: str
    tone: str


@dataclass(frozen=True)
class ClusterPage:
    """The content of the page of a cluster."""

    title: str
    tone: str
    launcher: str
    columns: tuple[str, ...]
    hosts: tuple[HostRow, ...]
    findings: tuple[Finding, ...]
    """Equal findings of several hosts are one."""
    reached: tuple[tuple[str, tuple[str, ...]], ...]
    """For each host, how it reaches each other host: an interface, `refused`, or `-` for not tried."""
    names: tuple[str, ...]
    links: tuple[LinksSection, ...]
    """The heat maps of the measured links between these hosts."""
    made: str


MOST_IN_MATRIX = 64
"""Hosts of the table of who reaches whom: of more hosts, not every pair is tried."""


def cluster_page(  # noqa: PLR0917  # the parts of a check
    hosts: Sequence[Host],
    measurements: Measurements,
    findings: Sequence[Finding],
    launcher: str,
    made: str,
    links: Sequence[Links] = (),
) -> ClusterPage:
    """The page of a check. `links`: the newest benchmarks of links, also between other hosts."""
    names = [host.name for host in hosts]
    measured = [benchmark.among(names) for benchmark in links]
    bad = unfit(findings)
    shown = [host.name for host in hosts if host.name in measurements.hosts]
    matrix = shown if 1 < len(shown) <= MOST_IN_MATRIX else []
    return ClusterPage(
        title=summary(hosts, findings),
        tone="bad" if bad else "good",
        launcher=launcher,
        columns=COLUMNS,
        hosts=tuple(_row(host, measurements.hosts.get(host.name), findings) for host in hosts),
        findings=tuple(folded(findings)),
        reached=tuple(
            (name, tuple(_path(measurements.hosts[name], other) for other in matrix)) for name in matrix
        ),
        names=tuple(matrix),
        links=tuple(section(benchmark) for benchmark in measured if benchmark.links),
        made=f"{made}, {count(len(hosts), 'host')}",
    )


def _row(host: Host, measured: Measured | None, findings: Sequence[Finding]) -> HostRow:
    severities = {finding.severity for finding in findings if finding.host == host.name}
    tone = "bad" if "error" in severities else "warning" if severities else "good"
    return HostRow(cells(host, measured), verdict(host.name, findings), tone)


def _path(measured: Measured, other: str) -> str:
    """How a host reaches another one: its interface, `refused`, or `-` for not tried."""
    reached = measured.reached.get(other)
    if reached is None:
        return "-"
    interfaces = sorted({interface or "?" for interface in (reached.interfaces or {}).values()})
    return ", ".join(interfaces) if interfaces else "refused" if reached.refused else "no answer"
