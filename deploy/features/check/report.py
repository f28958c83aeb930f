"""The result of `muster check`: a table with remedies for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ...core.hosts.finding import Finding, Severity
from ...core.hosts.hostfile import Host
from ...core.text.fold import HostMessage, fold_messages
from ...core.text.terminal import harmless
from ...core.text.text import count, size, table
from .judge import unfit
from .measurements import Measured, Measurements

OPTIONAL = ("/dev/shm", "clock", "disk", "Python")  # noqa: S108  # findings name what is wrong in these
"""The columns that a narrow terminal does not get, in this order."""
COLUMNS = ("host", "slots", "cores", "GPUs", "Open MPI", "torch", "Python", "clock", "disk", "/dev/shm")  # noqa: S108


def as_text(
    hosts: Sequence[Host], measurements: Measurements, findings: Sequence[Finding], width: int | None = None
) -> str:
    """A line for each host, then each finding with its remedy. Equal findings of several hosts are one.

    `width`: the columns of the terminal, if the text is for one; columns that do not fit are left out.
    """
    rows = _table(hosts, measurements, findings, width or sys.maxsize) if hosts else []
    lines = [*rows, *_explained(findings), "", summary(hosts, findings)]
    return "\n".join(harmless(line) for line in lines) + "\n"


def as_json(
    hosts: Sequence[Host], measurements: Measurements, findings: Sequence[Finding], launcher: str
) -> dict[str, Any]:
    """The same for programs, with every single finding, not folded."""
    bad = unfit(findings)
    return {
        "fit": not bad,
        "launcher": launcher,
        "hosts": [
            {"name": host.name, "slots": host.slots, "fit": host.name not in bad}
            | _host_json(measurements.hosts.get(host.name))
            for host in hosts
        ],
        "findings": [asdict(finding) for finding in findings],
    }


def _host_json(measured: Measured | None) -> dict[str, Any]:
    if measured is None:
        return {"facts": None, "health": None, "clock": None, "reached": None}
    return {
        "facts": asdict(measured.facts),
        "health": asdict(measured.health),
        "clock": {"ahead_s": measured.clock.ahead, "uncertainty_s": measured.clock.uncertainty},
        "reached": {name: asdict(reached) for name, reached in measured.reached.items()},
    }


def _table(
    hosts: Sequence[Host], measurements: Measurements, findings: Sequence[Finding], width: int
) -> list[str]:
    rows = [(*cells(host, measurements.hosts.get(host.name)), verdict(host.name, findings)) for host in hosts]
    columns = [*zip((*COLUMNS, ""), *rows, strict=True)]
    optional = [*OPTIONAL]
    while max(map(len, lines := table(zip(*columns, strict=True)))) > width and optional:
        name = optional.pop(0)
        columns = [column for column in columns if column[0] != name]
    return lines


def cells(host: Host, measured: Measured | None) -> tuple[str, ...]:
    """The row of a host, a text for each of COLUMNS."""
    if measured is None:
        return (host.name, str(host.slots), *["-"] * (len(COLUMNS) - 2))
    facts, health = measured.facts, measured.health
    return (
        host.name,
        str(host.slots),
        str(facts.cores),
        str(facts.gpus),
        facts.mpi or "none",
        facts.torch or "none",
        facts.python,
        f"{measured.clock.ahead * 1e3:+.2f} ms",
        _free(health.folders[0].free),
        _free(health.shm_free),
    )


def verdict(name: str, findings: Sequence[Finding]) -> str:
    """`fit`, `fit, 1 warning` or `2 errors, 1 warning`."""
    severities = [finding.severity for finding in findings if finding.host == name]
    counts = [
        count(severities.count(severity), severity)
        for severity in ("error", "warning")
        if severities.count(severity)
    ]
    return ", ".join(counts if "error" in severities else ["fit", *counts])


def _explained(findings: Sequence[Finding]) -> list[str]:
    """Each finding with its remedy."""
    lines = []
    for finding in folded(findings):
        lines += ["", f"{finding.severity.upper():<8}{finding.host}: {finding.text}  [{finding.id}]"]
        lines += [f"{'':<8}do: {finding.remedy}"] if finding.remedy else []
    return lines


def folded(findings: Sequence[Finding]) -> list[Finding]:
    """Equal findings as one, with the names of their hosts as ranges; errors before warnings."""
    groups: dict[tuple[Severity, str], list[HostMessage]] = {}
    for finding in sorted(findings, key=lambda item: item.severity):
        message = HostMessage(finding.host, finding.text, finding.remedy)
        groups.setdefault((finding.severity, finding.id), []).append(message)
    return [
        Finding(kind, message.host or "this machine", severity, message.text, message.remedy)
        for (severity, kind), messages in groups.items()
        for message in fold_messages(messages)
    ]


def summary(hosts: Sequence[Host], findings: Sequence[Finding]) -> str:
    """`2 of 3 hosts are fit, 1 warning`."""
    bad = {host.name for host in hosts} & unfit(findings)
    warnings = sum(finding.severity == "warning" for finding in findings)
    if not hosts:
        errors = sum(finding.severity == "error" for finding in findings)
        return ", ".join([*([count(errors, "error")] if errors else ["fit"]), count(warnings, "warning")])
    text = f"{len(hosts) - len(bad)} of {count(len(hosts), 'host')} {'is' if len(hosts) == 1 else 'are'} fit"
    return f"{text}, {count(warnings, 'warning')}" if warnings else text


def _free(number: int | None) -> str:
    return "none" if number is None else size(number)
