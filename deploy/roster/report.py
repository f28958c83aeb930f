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
from .additions import Additions, Seen

COLUMNS = ("host", "address", "reachable", "cores", "GPUs", "memory", "Python", "note")


def as_table(hosts: Sequence[Host], seen: Mapping[str, Seen], listed: Sequence[str], source: str) -> str:
    """A line for each host, then what to do about those that do not answer."""
    same = same_machines(hosts, seen)
    rows: list[tuple[str, ...]] = [COLUMNS]
    for host in hosts:
        known = seen[host.name]
        notes = [f"in {source}"] if host.name in listed else []
        notes += [f"the same machine as {same[host.name]}"] if host.name in same else []
        notes += [known.error.text] if known.error else []
        rows.append((*_cells(host.name, known), "; ".join(notes)))
    lines = table(rows)
    remedies = [
        (host.name, error.remedy)
        for host in hosts
        if (error := seen[host.name].error) is not None and error.remedy
    ]
    lines += (
        ["", *(f"{fold_names(names)}: do: {remedy}" for names, remedy in fold(remedies))] if remedies else []
    )
    answer = sum(seen[host.name].facts is not None for host in hosts)
    lines += ["", f"{answer} of {count(len(hosts), 'host')} {'answers' if answer == 1 else 'answer'}"]
    return "".join(f"{harmless(line)}\n" for line in lines)


def _cells(name: str, known: Seen) -> tuple[str, ...]:
    facts = known.facts
    if facts is None:
        return (name, known.address or "-", "no", *["-"] * 4)
    memory = size(facts.memory) if facts.memory else "-"
    return (name, known.address or "-", "yes", str(facts.cores), str(facts.gpus), memory, facts.python)


def as_json(hosts: Sequence[Host], seen: Mapping[str, Seen], listed: Sequence[str]) -> list[dict[str, Any]]:
    """The same for programs. `slots`: what `muster hosts add` would write."""
    same = same_machines(hosts, seen)
    return [
        {
            "name": host.name,
            "user": host.user,
            "port": host.port,
            "address": known.address,
            "listed": host.name in listed,
            "reachable": known.facts is not None,
            "same_as": same.get(host.name),
            "host_key": known.key or None,
            "slots": slots_of(known.facts, "auto") if known.facts else None,
            "facts": asdict(known.facts) if known.facts else None,
            "error": {"id": known.error.kind, "text": known.error.text, "remedy": known.error.remedy}
            if known.error
            else None,
        }
        for host, known in ((host, seen[host.name]) for host in hosts)
    ]


def same_machines(hosts: Sequence[Host], seen: Mapping[str, Seen]) -> dict[str, str]:
    """For each further name of a machine, its first name."""
    first: dict[tuple[str, str], str] = {}
    same: dict[str, str] = {}
    for host in hosts:
        if (machine := seen[host.name].machine) and first.setdefault(machine, host.name) != host.name:
            same[host.name] = first[machine]
    return same


def of_additions(made: Additions, lines: Sequence[str], source: str, *, dry: bool) -> str:
    """What was written, what is there already, and what was not added, with the reason."""
    verb = "would be added to" if dry else "added to"
    text = [f"{count(len(made.entries), 'host')} {verb} {source}", *(f"    {line}" for line in lines)]
    text += [f"note: {name}: {note}" for name, note in made.notes.items()]
    if made.present:
        text.append(f"there already: {fold_names(made.present)}")
    if made.refused:
        folded = fold(made.refused.items())
        text += ["not added:", *(f"    {fold_names(names)}: {reason}" for names, reason in folded)]
    return "".join(f"{harmless(line)}\n" for line in text)
