"""Which scanned hosts go into a hosts file: no host twice, by name or by machine. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..console.text import count
from ..errors import HostError
from ..hosts.facts import Facts
from ..hosts.hostfile import Host
from ..hosts.slots import SlotRule, slots_of
from .candidates import Candidate


@dataclass(frozen=True)
class ScannedHost:
    """The result of the scan of a host: its facts if it answered, else the error."""

    address: str = ""
    """The address or name to which SSH connects, with its port if that is not 22."""
    key: str = ""
    """The fingerprint of its host key; empty for this machine, and without a connection."""
    facts: Facts | None = None
    error: HostError | None = None

    @property
    def machine(self) -> tuple[str, str] | None:
        """Equal for two names of one machine. Cloned machines may share a key, but not the name."""
        return (self.key, self.facts.hostname) if self.facts and self.key else None


@dataclass
class Additions:
    """The outcome: lines to write, and why other hosts are not added."""

    entries: list[tuple[Host, str]] = field(default_factory=list)
    """Hosts with their slots, each with the comment for its line."""
    present: list[str] = field(default_factory=list)
    """Hosts that are in the file already."""
    refused: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


def additions(
    candidates: Sequence[Candidate],
    listed: Sequence[Host],
    scanned: Mapping[str, ScannedHost],
    rule: SlotRule,
    *,
    ask: bool = True,
) -> Additions:
    """Judge each candidate. `listed`: the hosts of the file. `ask`: hosts that did not answer are refused."""
    result = Additions()
    names, added = {host.name.lower() for host in listed}, set[str]()
    machines = {machine: host.name for host in listed if (machine := _machine(scanned, host.name))}
    keys = {machine[0]: name for machine, name in machines.items()}
    for candidate in candidates:
        name = candidate.host.name
        scan, machine = scanned.get(name, ScannedHost()), _machine(scanned, name)
        if name.lower() in names:
            result.present.append(name)
            continue
        if name.lower() in added:
            twice = f"{name} is the address of another host too; give each its own Host in ~/.ssh/config"
            result.refused[candidate.origin or name] = twice
            continue
        try:
            if ask and scan.facts is None:
                raise scan.error or HostError("host.failed", "it was not asked")
            slots = slots_of(scan.facts, rule) if scan.facts else rule
        except HostError as error:
            result.refused[name] = "; ".join(filter(None, (error.reason, candidate.note)))
            continue
        if machine in machines:
            result.refused[name] = f"the same machine as {machines[machine]} (host key {scan.key})"
            continue
        notes = [candidate.note] if candidate.note else []
        if machine:
            if other := keys.get(scan.key):
                notes.append(f"has the host key of {other}, another machine: give each host its own key")
            machines[machine] = keys[scan.key] = name
        added.add(name.lower())
        if notes:
            result.notes[name] = "; ".join(notes)
        assert isinstance(slots, int)  # noqa: S101  # without facts, the command takes a number only
        result.entries.append((replace(candidate.host, slots=slots), _comment(candidate, scan.facts)))
    return result


def _machine(scanned: Mapping[str, ScannedHost], name: str) -> tuple[str, str] | None:
    return scanned[name].machine if name in scanned else None


def _comment(candidate: Candidate, facts: Facts | None) -> str:
    """`8 GPUs`, `64 cores`; with its name in an inventory."""
    hardware = (count(facts.gpus, "GPU") if facts.gpus else count(facts.cores, "core")) if facts else ""
    return ", ".join(filter(None, (candidate.origin, hardware)))
