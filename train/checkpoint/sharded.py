"""Checkpoints of a sharded model: every rank writes its own shards, while the training goes on.

A checkpoint that lacks the files of a rank is incomplete, and is not used. Every rank reads the parts of the
files that it needs, so a checkpoint fits any number of ranks, and no rank ever holds the whole model.
shards.py describes the files. torch.distributed.checkpoint has the same idea, but its ranks exchange pickles,
and its `.metadata` is one: a compromised host would run code on all.

All ranks must see the folder. On disks of their own, a restart would have to bring the files of every host to
every other host, because each rank may need parts of each file, and the files of a host that is lost would be
lost; checkpoints.py, which keeps the whole model on each host, is for such hosts.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Optimizer

from ..job.failure import TrainError
from ..job.group import Group
from ..job.long_work import others_wait
from . import files, shards
from .checkpoints import FOLDER, lowest_rank_that_sees
from .parts import copied, flat, with_values


class ShardedCheckpoints:
    """The newest `keep` checkpoints of a sharded model, in a folder that every rank sees.

    Every method must be called on every rank.
    """

    def __init__(self, group: Group, out: Path, *, keep: int = 3) -> None:
        """Raise TrainError if the hosts do not share `out`."""
        self.group, self.folder, self.keep = group, out / FOLDER, keep
        seen = group.all_gather(lowest_rank_that_sees(self.folder, group), int)
        if blind := [host for host, lowest in zip(group.hosts, seen, strict=True) if lowest > 0]:
            raise TrainError(
                f"{', '.join(dict.fromkeys(blind))} and {group.hosts[0]} do not share {out}\n"
                "sharded checkpoints need a folder on a shared disk, because each rank writes a part of them"
            )
        self.writer = ThreadPoolExecutor(1, "checkpoint")
        self.written: Future[None] | None = None

    def save(self, step: int, model: nn.Module, optimizer: Optimizer) -> None:
        """Begin to write the checkpoint of `step`: returns as soon as this rank's shards are copied.

        Waits for the checkpoint before. Raises TrainError if that could not be written.
        """
        self.finish()
        path = files.path_of(self.folder, step)
        if self.group.rank == 0:  # what a killed run left of this step
            shutil.rmtree(path, ignore_errors=True)
        self.group.barrier()
        parts, contents = copied(_state(model, optimizer), self.group.rank)
        place = (self.group.rank, self.group.world_size)
        self.written = self.writer.submit(shards.write, path, *place, parts, contents)

    def finish(self) -> None:
        """Wait until the last checkpoint is complete, and remove those that are too old."""
        if self.written is None:
            return
        written, self.written, why = self.written, None, ""
        with others_wait(self.group):
            try:
                written.result()
            except OSError as error:
                why = str(error)
        self._raise_together(f"cannot write a checkpoint to {self.folder}", why)
        if self.group.rank == 0:  # no rank begins the next checkpoint before rank 0 does
            files.prune(self.folder, self.keep, shards.is_complete)

    def newest(self, model: nn.Module, optimizer: Optimizer) -> int | None:
        """Load the newest complete checkpoint; returns its step, or None if there is none.

        Raises TrainError, with nothing loaded, if it is damaged or of another model.
        """
        complete = [path for path in files.stored(self.folder) if shards.is_complete(path)]
        step = self.group.broadcast(files.step_of(complete[0]) if complete else -1, int)
        if step < 0:
            return None
        path, state, why = files.path_of(self.folder, step), _state(model, optimizer), ""
        wanted, every = dict(flat(state)), list[shards.Index]()
        with others_wait(self.group):
            try:
                every = self._checked(path, wanted)
            except shards.Unfit as unfit:
                why = str(unfit)
        self._raise_together(f"{path} cannot be continued", why)
        values = {}
        with others_wait(self.group):
            try:
                values = shards.fill(wanted, shards.indices(path), every)
            except shards.Unfit as unfit:
                why = str(unfit)
        self._raise_together(f"{path} cannot be continued", why)
        loaded = with_values(state, values)
        set_state_dict(
            model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"]
        )
        return step

    def begin(self) -> None:
        """Begin a new run: set the checkpoints of an earlier run aside."""
        if self.group.rank == 0:
            files.set_aside(self.folder, after=-1)
        self.group.barrier()

    def _checked(self, path: Path, wanted: Mapping[str, Any]) -> list[shards.Index]:
        """Read what each file has; the ranks share the work of verifying the files. Raises Unfit."""
        found = shards.indices(path)
        every = [shards.read_index(each) for each in found]
        for each, index in [*zip(found, every, strict=True)][self.group.rank :: self.group.world_size]:
            shards.verify(each, index)
        shards.check(wanted, every)
        return every

    def _raise_together(self, what: str, why: str) -> None:
        """Raise TrainError on every rank if one has a reason `why`; that of the lowest is shown."""
        for rank, reason in enumerate(self.group.all_gather(why, str)):
            if reason:
                raise TrainError(f"{what}: rank {rank} ({self.group.hosts[rank]}): {reason}")


def _state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Return this rank's shards; loading replaces them in place."""
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}
