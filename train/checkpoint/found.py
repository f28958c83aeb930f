"""Finds the newest complete save among the files of all disks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..job.group import Group
from ..job.long_work import others_wait
from . import files, shards
from .disks import Disks


@dataclass(frozen=True, slots=True)
class Good:
    """Files of a rank that one rank has verified: their name, and the save that they are of."""

    name: str
    save: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rank has verified of a step: the good files and the damage."""

    good: list[Good]
    damage: list[str]


@dataclass(frozen=True, slots=True)
class Found:
    """The complete save of a step; `holders` has the ranks that have verified the files of each rank."""

    step: int
    save: str
    holders: Sequence[Sequence[int]]

    @property
    def ranks(self) -> int:
        """How many ranks wrote it."""
        return len(self.holders)

    def disks_with(self, file: int, disks: Disks) -> set[int]:
        """Return the disks that have the files of a rank."""
        return {disks.of_rank[holder] for holder in self.holders[file]}


def newest_complete(
    group: Group, folder: Path, disks: Disks, say: Callable[[str], None]
) -> tuple[Found | None, bool]:
    """Return the newest step whose files are all good on some disk, and whether there are any steps.

    Every rank must call it. The ranks of a disk share the work of verifying its files. `say` gets a line for
    every damaged file, and for every step that is not complete.
    """
    here = [files.step_of(path) for path in files.stored(folder)] if group.rank in disks.every else []
    steps = sorted(set().union(*group.all_gather(here, list[int])), reverse=True)
    for step in steps:
        with others_wait(group):
            mine = _verified(files.path_of(folder, step), disks, group.rank)
        findings = group.all_gather(mine, Finding)
        for host, finding in zip(group.hosts, findings, strict=True):
            for damage in finding.damage:
                say(f"{host}: step {step}: {damage}")
        if saves := _complete(findings):
            save = max(saves)  # begins with the time
            return Found(step, save, saves[save]), True
        say(f"step {step} is not complete on any hosts")
    return None, bool(steps)


def _verified(folder: Path, disks: Disks, rank: int) -> Finding:
    sharing = disks.ranks(disks.of_rank[rank])
    good, damage = [], []
    for name in shards.names(folder)[sharing.index(rank) :: len(sharing)]:
        try:
            good.append(Good(name, shards.verified(folder / name).save))
        except shards.Unfit as unfit:
            damage.append(f"{folder}: {unfit}")
    return Finding(good, damage)


def _complete(findings: Sequence[Finding]) -> dict[str, list[list[int]]]:
    """Return the saves of which the files of every rank are there, with the holders of each."""
    by_save: dict[tuple[str, int], dict[int, list[int]]] = {}
    for holder, finding in enumerate(findings):
        for good in finding.good:
            if shards.NAME.fullmatch(good.name):
                rank, ranks = shards.ranks_of(good.name)
                by_save.setdefault((good.save, ranks), {}).setdefault(rank, []).append(holder)
    return {
        save: [there[rank] for rank in range(ranks)]
        for (save, ranks), there in by_save.items()
        if len(there) == ranks and set(there) == set(range(ranks))
    }
