"""Judges a Slurm site by the output of its own programs. Pure: output in, findings out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

OVERLAP = (20, 11)
"""The first version whose srun has --overlap (Slurm's RELEASE_NOTES of 20.11)."""
WELL = frozenset({"idle", "mix", "mixed", "alloc", "allocated", "comp", "completing", "plnd", "planned"})


class SiteFinding(NamedTuple):
    """A problem of the site, and its remedy, as `muster check` shows them."""

    severity: Literal["error", "warning"]
    id: str
    text: str
    remedy: str


error, warning = partial(SiteFinding, "error"), partial(SiteFinding, "warning")


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of a partition that have the same state: a line of sinfo."""

    partition: str
    open: bool
    nodes: int
    state: str
    reason: str = ""


@dataclass(frozen=True)
class SlurmSite:
    """A Slurm site. `error`: why Slurm's controller did not answer; the rest is empty then."""

    error: str = ""
    config: Mapping[str, str] = field(default_factory=dict)
    """`scontrol show config`, names in lower case."""
    groups: Sequence[NodeGroup] = ()
    partition: str = ""
    """The partition that the user named; empty for all."""


def parse_config(text: str) -> dict[str, str]:
    """The settings of `scontrol show config`, names in lower case; `(null)` is an empty value."""
    pairs = re.findall(r"^(\w+)\s*= (.*?)\s*$", text, re.MULTILINE)
    return {name.lower(): "" if value == "(null)" else value for name, value in pairs}


def parse_groups(text: str) -> list[NodeGroup]:
    """Lines of `sinfo --format=%R|%a|%D|%T|%E`."""
    lines = [parts for line in text.splitlines() if len(parts := line.split("|", 4)) == 5]
    return [
        NodeGroup(name, is_open == "up", int(nodes), state, "" if reason == "none" else reason)
        for name, is_open, nodes, state, reason in lines
        if nodes.isdecimal()
    ]


def judge_site(site: SlurmSite) -> tuple[SiteFinding, ...]:
    """Problems of the site that prevent launches with --slurm."""
    if site.error:
        remedy = "work on a login node of the site; there: scontrol ping"
        return (error("slurm.no-controller", site.error, remedy),)
    return (*_nodes(site), *_version(site))


def _nodes(site: SlurmSite) -> Iterator[SiteFinding]:
    groups = [group for group in site.groups if site.partition in {"", group.partition}]
    named = f"partition {site.partition}" if site.partition else "Slurm"
    if not groups:
        yield error(
            "slurm.no-partition", f"{named}: no such partition, or no nodes", "see sinfo; then -p NAME"
        )
        return
    for name in dict.fromkeys(group.partition for group in groups if not group.open):
        remedy = "take another one (-p NAME), or ask the site's staff"
        severity = error if name == site.partition else warning
        yield severity("slurm.partition-closed", f"partition {name} takes no jobs", remedy)
    sick = [group for group in groups if group.state.rstrip("*~#!%$@^-") not in WELL]
    for group in sick:
        why = f": {group.reason}" if group.reason else ""
        text = f"partition {group.partition}: {group.nodes} nodes are {group.state}{why}"
        yield warning("slurm.nodes-unusable", text, "ask for fewer nodes, or ask the site's staff")
    if len(sick) == len(groups):
        yield error("slurm.no-nodes", f"{named}: no node can take a job", "see sinfo --list-reasons")


def _version(site: SlurmSite) -> Iterator[SiteFinding]:
    version = tuple(map(int, re.findall(r"\d+", site.config.get("slurm_version", ""))[:2]))
    if version and version < OVERLAP:
        text = f"Slurm {site.config['slurm_version']}: its srun has no --overlap, which Muster needs"
        yield error("slurm.too-old", text, "Slurm 20.11 or newer; until then: a hosts file and SSH")
