"""Chooses the checkpoint that all hosts continue from: the newest that is complete on any of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..job.group import Group
from ..job.long_work import others_wait
from .files import STATE, Damaged, step_of, verify


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rank has of a checkpoint: its SHA-256 and size in bytes if it is complete, else the damage."""

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
        """Whether `rank` lacks this checkpoint: it has none, a damaged one, or another of this step."""
        return self.findings[rank].digest != self.digest


def agree(group: Group, mine: list[Path], say: Callable[[str], None]) -> Agreement | None:
    """Return the newest checkpoint that is complete on any rank; None if there is none.

    `mine` are the checkpoints of this rank. Every rank must call it. The ranks verify one step at a time,
    the latest first; `say` gets a line for each damaged checkpoint.
    """
    of_step = {step_of(path): path for path in mine}
    for step in sorted(set().union(*group.all_gather(sorted(of_step), list[int])), reverse=True):
        with others_wait(group):
            finding_here = examine(of_step.get(step))
        findings = group.all_gather(finding_here, Finding)
        for host, finding in zip(group.hosts, findings, strict=True):
            if finding.damage:
                say(f"{host}: {finding.damage}")
        if any(finding.digest for finding in findings):
            return Agreement(step, tuple(findings))
    return None


def examine(path: Path | None) -> Finding:
    """Verify the checkpoint at `path`; None means that this rank has none."""
    if path is None:
        return Finding()
    try:
        return Finding(verify(path), (path / STATE).stat().st_size)
    except Damaged as damage:
        return Finding(damage=str(damage))
