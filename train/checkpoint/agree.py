"""Which checkpoint all hosts continue from: the newest that is complete on at least one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..group import Group
from .folder import STATE, Damaged, step_of, verify


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rank has of a checkpoint: its SHA-256 and size in bytes if it is whole, else what is wrong."""

    digest: str = ""
    size: int = 0
    damage: str = ""


@dataclass(frozen=True, slots=True)
class Agreement:
    """The checkpoint of `step`, as each rank has it; that of rank `source` is the one to use."""

    step: int
    findings: tuple[Finding, ...]

    @property
    def source(self) -> int:
        return next(rank for rank, finding in enumerate(self.findings) if finding.digest)

    @property
    def digest(self) -> str:
        return self.findings[self.source].digest

    @property
    def size(self) -> int:
        return self.findings[self.source].size

    def lacks(self, rank: int) -> bool:
        """Whether `rank` has not this very checkpoint: none, a damaged one, or another of the same step."""
        return self.findings[rank].digest != self.digest


def agree(group: Group, mine: list[Path], say: Callable[[str], None]) -> Agreement | None:
    """Return the newest checkpoint that is whole on any rank, `mine` being this rank's; None if none is.

    Every rank must call it. One step at a time is looked at, the latest first, by all that have it; `say`
    is told of each that is damaged.
    """
    of_step = {step_of(path): path for path in mine}
    for step in sorted(set().union(*group.all_gather(set(of_step))), reverse=True):
        findings = group.all_gather(examine(of_step.get(step)))
        for host, finding in zip(group.hosts, findings, strict=True):
            if finding.damage:
                say(f"{host}: {finding.damage}; looking for another")
        if any(finding.digest for finding in findings):
            return Agreement(step, tuple(findings))
    return None


def examine(path: Path | None) -> Finding:
    """Look at the checkpoint at `path`, if there is one."""
    if path is None:
        return Finding()
    try:
        return Finding(verify(path), (path / STATE).stat().st_size)
    except Damaged as damage:
        return Finding(damage=str(damage))
