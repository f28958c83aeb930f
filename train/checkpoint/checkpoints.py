"""The checkpoints of a run: where each rank finds them, which ranks write, and where a run continues."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from ..job import lock
from ..job.failure import TrainError
from ..job.group import Group
from ..job.long_work import others_wait
from ..reporting.terminal import Terminal
from . import files
from .agree import Agreement, agree
from .spread import spread
from .state import as_stored, put_back, refuse_other, taken, weights_of, whole

FOLDER = "checkpoints"
SAME = "same"
"""The name in a checkpoint of the options that must not change."""


class Checkpoints:
    """The newest `keep` checkpoints of a run, in `out` of every host.

        checkpoints = Checkpoints(job, job.out)
        states = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "step": 0}
        step = checkpoints.load(states) or 0
        ...
        checkpoints.save(step, states)

    `states` has the parts of the training by name: models and optimizers under any strategy, anything else
    with `state_dict` and `load_state_dict`, and plain data. Of parts that differ between the ranks the one of
    the rank that writes is saved.

    A folder has one writer: the lowest of the ranks that see it. So hosts that share a disk keep one copy,
    and hosts with disks of their own keep one each. Every method must be called on every rank; where one rank
    reads or writes a disk, the others wait for it however long it takes.
    """

    def __init__(
        self,
        group: Group,
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
        self.say = say or Terminal(group.ranks, os.environ).line
        self.writer = lowest_rank_that_sees(self.folder, group)
        self.writers = tuple(sorted(set(group.all_gather(self.writer, int, what="disk"))))
        take(self.folder, group, leads=self.writes)

    @property
    def writes(self) -> bool:
        """Whether this rank writes its folder."""
        return self.writer == self.group.rank

    def save(self, step: int, states: Mapping[str, Any]) -> None:
        """Write `states` as the checkpoint of `step`; on failure raise TrainError and keep earlier ones.

        Raises TrainError, before anything is written, if a state holds what could not be loaded again, or if
        a loss or a weight is not finite: such checkpoints would push out the good ones.
        """
        self.group.check_finite(step, weights_of(states))
        mine = {SAME: self.same, **states} if self.same else states
        tree = whole(taken(mine, self.writers), keep=self.writes)
        with others_wait(self.group):
            if self.writes:
                files.save(self.folder, step, tree)
                files.prune(self.folder, self.keep)

    def load(
        self, states: MutableMapping[str, Any], path: Path | None = None, *, required: bool = False
    ) -> int | None:
        """Load the newest good checkpoint of any host into `states`; returns its step, or None without one.

        Parts with `load_state_dict` are loaded in place, plain data is replaced in `states`. `path` is a
        checkpoint, or the folder or run that has it: then, and if it is `required`, there must be one. Raises
        TrainError, with nothing changed in a model or on a disk, if there is none, or if it is of another
        network or of other options.
        """
        candidates = files.stored(self.folder) if path is None else checkpoints_at(path)
        damage: list[str] = []
        agreement = agree(self.group, candidates if self.writes else [], damage.append)
        for line in damage:
            self.say(f"{line}; looking for another")
        if agreement is None:
            refuse_none(path or self.folder, damage, self.say, required=required or path is not None)
            self.begin()
            return None
        found = next((each for each in candidates if files.step_of(each) == agreement.step), None)
        self._check(agreement, found, states)
        self._set_aside(after=agreement.step if self._owns(path) else -1)
        local = self._local_copy(agreement, found)
        with others_wait(self.group):
            tree = files.load(local)
        self.say(f"resumed from {local} of {self.group.hosts[agreement.source]}")
        put_back(states, as_stored(tree))
        return agreement.step

    def finish(self) -> None:
        """Return at once: save has written everything. ShardedCheckpoints waits here for its last one."""

    def begin(self) -> None:
        """Begin a new run: set the checkpoints of an earlier run aside."""
        self._set_aside(after=-1)

    def _owns(self, path: Path | None) -> bool:
        """Whether the checkpoints at `path` are those of this run."""
        here = None if path is None else path.resolve()
        return here is None or self.folder.resolve() in (here, here.parent, here / FOLDER)

    def _check(self, agreement: Agreement, path: Path | None, states: Mapping[str, Any]) -> None:
        """Raise TrainError on every rank if the rank that has the checkpoint finds that it does not fit."""
        refusal = ""
        with others_wait(self.group):
            if self.group.rank == agreement.source and path is not None:
                try:
                    tree = files.load(path)
                    refuse_other_options(self.same, tree.get(SAME, {}))
                    refuse_other(states, as_stored(tree))
                except TrainError as error:
                    refusal = str(error)
        if refusal := self.group.all_gather(refusal, str)[agreement.source]:
            raise TrainError(refusal)

    def _local_copy(self, agreement: Agreement, path: Path | None) -> Path:
        """Return where this rank finds the agreed checkpoint, after it was copied to hosts that lack it."""
        lacking = [rank for rank in self.writers if agreement.lacks(rank)]
        with others_wait(self.group):
            if lacking and self.group.rank in (agreement.source, *lacking):
                spread(self.group, agreement, (agreement.source, *lacking), path, self.folder)
        for rank in lacking:
            self.say(f"{self.group.hosts[rank]}: got the checkpoint of step {agreement.step}")
        mine = files.path_of(self.folder, agreement.step) if self.group.rank in lacking else path
        return Path(self.group.all_gather(str(mine or self.folder), str)[self.writer])

    def _set_aside(self, after: int) -> None:
        aside = files.set_aside(self.folder, after) if self.writes else None
        for host, where in zip(self.group.hosts, self.group.all_gather(str(aside or ""), str), strict=True):
            if where:
                self.say(f"{host}: earlier checkpoints set aside in {where}")


def refuse_other_options(here: Mapping[str, Any], there: Mapping[str, Any]) -> None:
    """Raise TrainError if a checkpoint was made with other options than these."""
    changed = [
        f"the checkpoint is of a training with {name} {there.get(name)}, not {value}; continue with the same"
        for name, value in here.items()
        if there.get(name) != value
    ]
    if changed:
        raise TrainError("\n".join(changed))


def take(folder: Path, group: Group, *, leads: bool) -> None:
    """Lock the output folder for this job, on the ranks that lead a disk; TrainError if another has it."""
    name, restart = getattr(group, "name", ""), getattr(group, "restart", 0)
    holder = ""
    try:
        holder = lock.hold(folder.parent, name, restart) if leads else ""
    except OSError as error:
        holder = f"no lock, {error.strerror}"
    for host, other in zip(group.hosts, group.all_gather(holder, str, what="lock"), strict=True):
        if other:
            raise TrainError(
                f"{host}: another job writes to {folder.parent}: {other}\n"
                "wait until it has ended, or stop it, or choose another directory with --out"
            )


def refuse_none(where: Path, found: Sequence[str], say: Callable[[str], None], *, required: bool) -> None:
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


def checkpoints_at(path: Path) -> list[Path]:
    """Return what `--resume` may mean by `path`: a checkpoint, a folder of them, or a run's directory."""
    if files.is_checkpoint(path):
        return [path] if path.exists() else []
    return files.stored(path) or files.stored(path / FOLDER)


def lowest_rank_that_sees(folder: Path, group: Group) -> int:
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
