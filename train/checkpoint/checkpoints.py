"""Whole checkpoints: one file on each disk, which one rank writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from ..job.failure import TrainError
from ..job.long_work import others_wait
from . import files
from .core import FOLDER, SAME, BaseCheckpoints, Finding, Found, Good
from .shards import name_of
from .spread import spread
from .state import as_stored, put_back, refuse_other, taken, weights_of, whole


class Checkpoints(BaseCheckpoints):
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
    and hosts with disks of their own keep one each. Every method must be called on every rank.
    """

    FILE = re.compile(name_of(0, 1))

    def save(self, step: int, states: Mapping[str, Any]) -> None:
        """Write `states` as the checkpoint of `step`; on failure raise TrainError and keep earlier ones.

        Raises TrainError, before anything is written, if a state holds what could not be loaded again, or if
        a loss or a weight is not finite: such checkpoints would push out the good ones.
        """
        self.group.check_finite(step, weights_of(states))
        mine = {SAME: self.same, **states} if self.same else states
        tree = whole(taken(mine, self.disks.every), keep=self.leads)
        with others_wait(self.group):
            if self.leads:
                files.save(self.folder, step, tree)
                files.prune(self.folder, self.keep)

    def finish(self) -> None:
        """Return at once: save has written everything."""

    def _newest(self, path: Path | None, say: Callable[[str], None]) -> Found | None:
        here = self._here(path) if self.leads else {}
        return self._newest_of(here, lambda step: _examined(here.get(step)), say)

    def _order(self, found: Found) -> int:
        return -min(found.holders[0])  # digests have no order, so that of the lowest rank is used

    def _here(self, path: Path | None) -> dict[int, Path]:
        """Return the checkpoints by step: of this run, or what `--resume` may mean by `path`."""
        if path is None:
            return files.found(self.folder)
        if files.is_checkpoint(path):
            step, found = files.step_of(path), files.found(path.parent)
            return {step: found[step]} if step in found else {}
        return files.found(path) or files.found(path / FOLDER)

    def _continue(self, found: Found, states: MutableMapping[str, Any], path: Path | None) -> None:
        here = self._here(path).get(found.step)
        self._check(found, here, states)
        self._set_aside(after=found.step if self._owns(path) else -1)
        local = self._local_copy(found, here)
        with others_wait(self.group):
            tree = files.load(local)
        self.say(f"resumed from {local} of {self.group.hosts[found.holders[0][0]]}")
        put_back(states, as_stored(tree))

    def _owns(self, path: Path | None) -> bool:
        """Whether the checkpoints at `path` are those of this run."""
        here = None if path is None else path.resolve()
        return here is None or self.folder.resolve() in (here, here.parent, here / FOLDER)

    def _check(self, found: Found, path: Path | None, states: Mapping[str, Any]) -> None:
        """Raise TrainError on every rank if the rank that has the checkpoint finds that it does not fit."""
        source, refusal = found.holders[0][0], ""
        with others_wait(self.group):
            if self.group.rank == source and path is not None:
                try:
                    tree = files.load(path)
                    self._refuse_other_options(tree.get(SAME, {}))
                    refuse_other(states, as_stored(tree))
                except TrainError as error:
                    refusal = str(error)
        if refusal := self.group.all_gather(refusal, str)[source]:
            raise TrainError(refusal)

    def _local_copy(self, found: Found, path: Path | None) -> Path:
        """Return where this rank finds the checkpoint, after it was copied to the hosts that lack it."""
        (holders,) = found.holders
        lacking = [disk for disk in self.disks.every if disk not in holders]
        with others_wait(self.group):
            if lacking and self.group.rank in (holders[0], *lacking):
                spread(self.group, found, (holders[0], *lacking), path, self.folder)
        for rank in lacking:
            self.say(f"{self.group.hosts[rank]}: got the checkpoint of step {found.step}")
        mine = files.path_of(self.folder, found.step) if self.group.rank in lacking else path
        of_ranks = self.group.all_gather(str(mine or self.folder), str)
        return Path(of_ranks[self.disks.of_rank[self.group.rank]])


def _examined(path: Path | None) -> Finding:
    """Verify the checkpoint at `path`, the only file of its save; None means that this rank has none."""
    if path is None:
        return Finding([], [])
    try:
        return Finding([Good(name_of(0, 1), files.verify(path), (path / files.STATE).stat().st_size)], [])
    except files.Unfit as damage:
        return Finding([], [str(damage)])
