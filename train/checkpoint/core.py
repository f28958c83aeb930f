"""What whole and sharded checkpoints have in common: their folder, who leads a disk, which is the newest."""

from __future__ import annotations

import re
import reprlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..job import lock
from ..job.failure import TrainError
from ..job.group import Job
from ..job.long_work import others_wait
from ..reporting.terminal import Terminal
from . import files
from .shards import ranks_of

FOLDER = "checkpoints"
LAST = 10**15
"""The highest number of a step."""
SAME = "same"
"""The name in a checkpoint of the options that must not change."""


@dataclass(frozen=True, slots=True)
class Good:
    """A file that one rank has verified: its name, the save that it is of, and its size in bytes."""

    name: str
    save: str
    size: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rank has verified of a step: the good files and the damage."""

    good: list[Good]
    damage: list[str]


@dataclass(frozen=True, slots=True)
class Found:
    """The complete save of a step; `holders` has the ranks that have verified each of its files."""

    step: int
    save: str
    size: int
    holders: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Disks:
    """The disks of a job, by the lowest rank that sees each; `of_rank` has that of every rank."""

    of_rank: Sequence[int]

    @property
    def every(self) -> list[int]:
        """The disks, in the order of their lowest ranks."""
        return sorted(set(self.of_rank))

    def ranks(self, disk: int) -> list[int]:
        return [rank for rank, seen in enumerate(self.of_rank) if seen == disk]

    def neighbour(self, rank: int) -> int | None:
        """Return the rank of the next disk that keeps a copy of this rank's files; None if all share one."""
        every = self.every
        if len(every) == 1:
            return None
        mine = self.of_rank[rank]
        there = self.ranks(every[(every.index(mine) + 1) % len(every)])
        return there[self.ranks(mine).index(rank) % len(there)]

    def senders(self, rank: int) -> list[int]:
        """Return the ranks whose files this rank keeps a copy of."""
        return [other for other in range(len(self.of_rank)) if self.neighbour(other) == rank]


class BaseCheckpoints(ABC):
    """The newest `keep` checkpoints of a run, in `out` of every host.

    Every method must be called on every rank; where one rank reads or writes a disk, the others wait for it
    however long it takes.
    """

    FILE: re.Pattern[str]
    """The names that its files may have, without suffix; other ranks say which ones they have."""

    def __init__(
        self,
        group: Job,
        out: Path,
        *,
        keep: int = 3,
        say: Callable[[str], None] | None = None,
        same: Mapping[str, Any] | None = None,
    ) -> None:
        """Call `say` with a line when a checkpoint is damaged or set aside; by default rank 0 prints it.

        `same` has options of the training, plain data, such as {"seed": 3, "batch_size": 64}. A checkpoint
        that was made with others is refused.
        """
        self.group, self.folder, self.keep, self.same = group, out / FOLDER, keep, dict(same or {})
        self.say = say or Terminal(group.ranks).line
        self.disks = Disks(group.all_gather(_lowest_rank_that_sees(self.folder, group), int, what="disk"))
        _take(self.folder, group, leads=self.leads)
        self._open(files.replaced(self.folder) if self.leads else [])

    def _open(self, replaced: Iterable[int]) -> None:
        """Finish the replacement of the checkpoints of these steps, which a kill interrupted on this disk."""
        if self.leads:
            files.recover(self.folder, replaced)

    @property
    def leads(self) -> bool:
        """Whether this rank removes and moves checkpoints on its disk: the lowest that sees it does."""
        return self.group.rank in self.disks.every

    @abstractmethod
    def save(self, step: int, states: Mapping[str, Any]) -> None: ...

    def load(
        self, states: MutableMapping[str, Any], path: Path | None = None, *, required: bool = False
    ) -> int | None:
        """Load the newest complete checkpoint of all hosts into `states`; returns its step, None without one.

        Parts with `load_state_dict` are loaded in place, plain data is replaced in `states`. `path` is a
        checkpoint, or the folder or run that has it: then, and if it is `required`, there must be one. Raises
        TrainError, with nothing changed in a model or on a disk, if there is none, or if it is of another
        network or of other options.
        """
        damage: list[str] = []
        found = self._newest(path, damage.append)
        for line in damage:
            self.say(f"{line}; looking for another")
        if found is None:
            where = path or self.folder
            _refuse_none(where, damage, self.say, required=required or path is not None)
            self.begin()
            return None
        self._continue(found, states, path)
        return found.step

    @abstractmethod
    def _newest(self, path: Path | None, say: Callable[[str], None]) -> Found | None:
        """Return the newest checkpoint that is complete; `say` gets a line for each damaged file."""

    @abstractmethod
    def _continue(self, found: Found, states: MutableMapping[str, Any], path: Path | None) -> None: ...

    def _order(self, found: Found) -> Any:
        """Return the key by which one of several saves of a step is used; a sharded one has its time."""
        return found.save

    def begin(self) -> None:
        """Begin a new run: set the checkpoints of an earlier run aside."""
        self._set_aside(after=-1)

    @abstractmethod
    def finish(self) -> None: ...

    def _set_aside(self, after: int) -> None:
        aside = files.set_aside(self.folder, after) if self.leads else None
        for host, where in zip(self.group.hosts, self.group.all_gather(str(aside or ""), str), strict=True):
            if where:
                self.say(f"{host}: earlier checkpoints set aside in {where}")

    def _newest_of(
        self, here: Iterable[int], examine: Callable[[int], Finding], say: Callable[[str], None]
    ) -> Found | None:
        """Return the newest of all ranks' steps `here` of which every file is good somewhere.

        The ranks `examine` one step at a time, the latest first.
        """
        of_ranks = self.group.all_gather(sorted(here), list[int])
        for rank, steps in enumerate(of_ranks):
            if other := [step for step in steps if not 0 <= step <= LAST]:
                raise self._invalid(rank, f"there is a step {reprlib.repr(other[0])}")
        for step in sorted(set().union(*of_ranks), reverse=True):
            with others_wait(self.group):
                mine = examine(step)
            findings = self.group.all_gather(mine, Finding)
            for rank, (host, finding) in enumerate(zip(self.group.hosts, findings, strict=True)):
                if names := [good.name for good in finding.good if not self.FILE.fullmatch(good.name)]:
                    raise self._invalid(rank, f"step {step} has a file {reprlib.repr(names[0])}")
                for damage in finding.damage:
                    say(f"{host}: {damage}")
            if saves := _complete(step, findings):
                return max(saves, key=self._order)
            if any(finding.good for finding in findings):  # otherwise the lines of damage say all
                say(f"step {step} is not complete on any hosts")
        return None

    def _invalid(self, rank: int, said: str) -> TrainError:
        """Return the error for what a rank says of its files, where no checkpoint of this class has that."""
        return TrainError(
            f"rank {rank} ({self.group.hosts[rank]}) says that {said}, as no {type(self).__name__} can have\n"
            "does it run the same program, and the same version of muster.train?"
        )

    def _raise_together(self, what: str, why: str) -> None:
        """Raise TrainError on every rank if one has a reason `why`; that of the lowest is shown."""
        for rank, reason in enumerate(self.group.all_gather(why, str)):
            if reason:
                raise TrainError(f"{what}: rank {rank} ({self.group.hosts[rank]}): {reason}")

    def _refuse_other_options(self, there: Mapping[str, Any]) -> None:
        changed = [
            f"the checkpoint is of a training with {name} {there.get(name)}, not {value}; "
            "continue with the same"
            for name, value in self.same.items()
            if there.get(name) != value
        ]
        if changed:
            raise TrainError("\n".join(changed))


def _complete(step: int, findings: Sequence[Finding]) -> list[Found]:
    by_save: dict[tuple[str, int, int], dict[int, list[int]]] = {}
    for holder, finding in enumerate(findings):
        for good in finding.good:
            rank, ranks = ranks_of(good.name)
            by_save.setdefault((good.save, ranks, good.size), {}).setdefault(rank, []).append(holder)
    return [
        Found(step, save, size, [there[rank] for rank in range(ranks)])
        for (save, ranks, size), there in by_save.items()
        if len(there) == ranks and set(there) == set(range(ranks))
    ]


def _take(folder: Path, group: Job, *, leads: bool) -> None:
    """Lock the output folder for this job, on the ranks that lead a disk; TrainError if another has it."""
    try:
        holder = lock.hold(folder.parent, group.name, group.restart) if leads else ""
    except OSError as error:
        holder = f"no lock, {error.strerror}"
    for host, other in zip(group.hosts, group.all_gather(holder, str, what="lock"), strict=True):
        if other:
            raise TrainError(
                f"{host}: another job writes to {folder.parent}: {other}\n"
                "wait until it has ended, or stop it, or choose another directory with --out"
            )


def _refuse_none(where: Path, found: Sequence[str], say: Callable[[str], None], *, required: bool) -> None:
    """Say that there is no checkpoint to resume from; if one is `required`, raise TrainError."""
    nothing = f"no host has a complete checkpoint in {where}"
    if not required:
        say(nothing)
        return
    lines = found[:8] or [f"there is {'no checkpoint in it' if where.exists() else 'no such folder here'}"]
    raise TrainError(
        "\n".join([f"nothing to resume from: {nothing}", *lines])
        + '\nto start at step 1, leave out resume; resume="if-any" (--resume if-any) does so if there is none'
    )


def _lowest_rank_that_sees(folder: Path, group: Job) -> int:
    """Return the first of all ranks for which `folder` is the same folder as here.

    Paths and host names do not show it: a disk may be shared, or mounted elsewhere. So every rank creates a
    file and looks for the files of the others, each by name, because a listing on NFS may be seconds old.
    """
    run = group.broadcast(secrets.randbits(64), int)  # a number, because it becomes part of a path
    marks = [folder / f".rank-{rank}-{run}" for rank in range(group.rank + 1)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        marks[-1].touch()
    except OSError as error:
        raise TrainError(
            f"{group.hosts[group.rank]}: cannot write to {folder}: {error.strerror}; "
            "choose another directory with --out"
        ) from error
    group.barrier()
    lowest = next(rank for rank, mark in enumerate(marks) if mark.exists())
    group.barrier()
    marks[-1].unlink(missing_ok=True)
    return lowest
