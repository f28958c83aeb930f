"""The result of a scan and of an addition: a table and lines for people, JSON for programs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..console.fold import fold, fold_names
from ..console.terminal import harmless
from ..console.text import count, size, table
from ..hosts.hostfile import Host
from ..hosts.slots import slots_of
from .additions import Additions, ScannedHost

COLUMNS = ("host", "address", "reachable", "cores", "GPUs", "memory", "Python", "note")


def as_table(
    hosts: Sequence[Host], scanned: Mapping[str, ScannedHost], listed: Sequence[str], source: str
) -> str:
    """A line for each host, then the remedies for those that do not answer."""
    same = same_machines(hosts, scanned)
    rows: list[tuple[str, ...]] = [COLUMNS]
    for host in hosts:
        scan = scanned[host.name]
        notes = [f"in {source}"] if host.name in listed else []
        notes += [f"the same machine as {same[host.name]}"] if host.name in same else []
        notes += [scan.error.text] if scan.error else []
        rows.append((*_cells(host.name, scan), "; ".join(notes)))
    lines = table(rows)
    remedies = [
        (host.name, error.remedy)
        for host in hosts
        if (error := scanned[host.name].error) is not None and error.remedy
    ]
    lines += (
        ["", *(f"{fold_names(names)}: do: {remedy}" for names, remedy in fold(remedies))] if remedies else []
    )
    answer = sum(scanned[host.name].facts is not None for host in hosts)
    lines += ["", f"{answer} of {count(len(hosts), 'host')} {'answers' if answer == 1 else 'answer'}"]
    return "".join(f"{harmless(line)}\n" for line in lines)


def _cells(name: str, scan: ScannedHost) -> tuple[str, ...]:
    facts = scan.facts
    if facts is None:
        return (name, scan.address or "-", "no", *["-"] * 4)
    memory = size(facts.memory) if facts.memory else "-"
    return (name, scan.address or "-", "yes", str(facts.cores), str(facts.gpus), memory, facts.python)


def as_json(
    hosts: Sequence[Host], scanned: Mapping[str, ScannedHost], listed: Sequence[str]
) -> list[dict[str, Any]]:
    """The same for programs. `slots`: as `muster hosts add` would write them."""
    same = same_machines(hosts, scanned)
    return [
        {
            "name": host.name,
            "user": host.user,
            "port": host.port,
            "address": scan.address,
            "listed": host.name in listed,
            "reachable": scan.facts is not None,
            "same_as": same.get(host.name),
            "host_key": scan.key or None,
            "slots": slots_of(scan.facts, "auto") if scan.facts else None,
            "facts": asdict(scan.facts) if scan.facts else None,
            "error": {"id": scan.error.kind, "text": scan.error.text, "remedy": scan.error.remedy}
            if scan.error
            else None,
        }
        for host, scan in ((host, scanned[host.name]) for host in hosts)
    ]


def same_machines(hosts: Sequence[Host], scanned: Mapping[str, ScannedHost]) -> dict[str, str]:
    """For each further name of a machine, its first name."""
    first: dict[tuple[str, str], str] = {}
    same: dict[str, str] = {}
    for host in hosts:
        if (machine := scanned[host.name].machine) and first.setdefault(machine, host.name) != host.name:
            same[host.name] = first[machine]
    return same


def of_additions(added: Additions, lines: Sequence[str], source: str, *, dry: bool) -> str:
    """The hosts that were added, those that were present, and those that were refused, with the reason."""
    verb = "would be added to" if dry else "added to"
    text = [f"{count(len(added.entries), 'host')} {verb} {source}", *(f"    {line}" for line in lines)]
    text += [f"note: {name}: {note}" for name, note in added.notes.items()]
    if added.present:
        text.append(f"already listed: {fold_names(added.present)}")
    if added.refused:
        folded = fold(added.refused.items())
        text += ["not added:", *(f"    {fold_names(names)}: {reason}" for names, reason in folded)]
    return "".join(f"{harmless(line)}\n" for line in text)
