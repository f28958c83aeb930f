"""Judges whether hosts are fit. Pure: hosts and an examination in, findings out.

A finding is an error if `fab launch` of the training program with this launcher would be refused or could not
work. It is a warning if the launch works, but slowly or not with every program. Programs read the ids of
findings, so an id never changes; docs/check.md lists them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..hosts.hostfile import Host
from ..image.versions import Track
from ..plan.launcher import LauncherName
from .consistency import clocks, differences
from .finding import Finding as Finding
from .finding import of_error
from .host import of_host, own_name
from .image import images
from .measurements import Examination
from .network import network, ports


def check(
    hosts: Sequence[Host],
    examination: Examination,
    launcher: LauncherName,
    tracks: Mapping[str, Track] | None = None,
) -> tuple[Finding, ...]:
    """All findings, in the order of the hosts, errors first. `tracks`: the tracks of docker/versions.json."""
    examined = {host: examination.hosts[host.name] for host in hosts if host.name in examination.hosts}
    findings = [of_error(name, error) for name, error in examination.errors.items()]
    ranks = sum(host.slots for host in hosts)
    for host, measured in examined.items():
        findings += of_host(host, measured, launcher, ranks)
        if len(hosts) > 1:
            findings += own_name(host, measured)
    by_name = {host.name: measured for host, measured in examined.items()}
    apart = list(differences(by_name, launcher))
    findings += apart
    findings += images(by_name, tracks or {}, {(finding.host, finding.id) for finding in apart})
    findings += clocks({name: measured.clock for name, measured in by_name.items()})
    findings += ports(hosts[0].name, by_name)
    findings += network(hosts, by_name)
    order = [host.name for host in hosts]
    return tuple(
        sorted(
            findings,
            key=lambda finding: (
                order.index(finding.host) if finding.host in order else -1,
                finding.severity,
            ),
        )
    )


def unfit(findings: Sequence[Finding]) -> set[str]:
    """The hosts with an error."""
    return {finding.host for finding in findings if finding.severity == "error"}
