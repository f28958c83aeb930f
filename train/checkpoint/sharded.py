"""Checkpoints of a sharded model: every rank writes its own shards, while the training goes on.

torch.distributed.checkpoint writes them, one file for each rank, and last a file `.metadata` that says what
is where. A checkpoint without it is incomplete, and is not used. Every rank reads the parts of the files that
it needs, so a checkpoint fits any number of ranks, and no rank ever holds the whole model.

All ranks must see the folder. On disks of their own, a restart would have to bring the files of every host to
every other host, because each rank may need parts of each file, and the files of a host that is lost would be
lost; checkpoints.py, which keeps the whole model on each host, is for such hosts.
"""

from __future__ import annotations

import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from ..job.failure import TrainError
from ..job.group import Group
from ..job.long_work import others_wait
from . import files
from .checkpoints import FOLDER, lowest_rank_that_sees

COMPLETE = ".metadata"


class ShardedCheckpoints:
    """The newest `keep` checkpoints of a sharded model, in a folder that every rank sees.

    Every method must be called on every rank. torch reads `.metadata` by pickle, which can run code: continue
    only from folders that you trust.
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
        # Saving goes on beside the training, whose own collectives must not come in between.
        self.saving = dist.new_group(backend="gloo")
        self.written: Future[Any] | None = None

    def save(self, step: int, model: nn.Module, optimizer: Optimizer) -> None:
        """Begin to write the checkpoint of `step`: returns as soon as this rank's shards are copied.

        Waits for the checkpoint before. Raises TrainError if that could not be written.
        """
        self.finish()
        path = files.path_of(self.folder, step)
        if self.group.rank == 0:  # what a killed run left of this step
            shutil.rmtree(path, ignore_errors=True)
        self.group.barrier()
        state = _state(model, optimizer)
        # torch 2.6 copies what is on a GPU, but writes tensors of the CPU while the training changes them:
        # https://github.com/pytorch/pytorch/issues/144657.
        if torch.__version__ < "2.7":
            state = tree_map(_copied, state)
        written = dcp.async_save(state, checkpoint_id=path, process_group=self.saving)
        assert isinstance(written, Future)  # noqa: S101 - only other stagers return something else
        self.written = written

    def finish(self) -> None:
        """Wait until the last checkpoint is complete, and remove those that are too old."""
        if self.written is None:
            return
        try:
            with others_wait(self.group):
                self.written.result()
        except CheckpointException as error:
            why = self._first_failure(error)
            raise TrainError(f"cannot write a checkpoint to {self.folder}: {why}") from error
        finally:
            self.written = None
        if self.group.rank == 0:  # no rank begins the next checkpoint before rank 0 does
            files.prune(self.folder, self.keep, _is_complete)

    def newest(self, model: nn.Module, optimizer: Optimizer) -> int | None:
        """Load the newest complete checkpoint; returns its step, or None if there is none."""
        complete = [path for path in files.stored(self.folder) if _is_complete(path)]
        path = self.group.broadcast(complete[0] if complete else None)
        if path is None:
            return None
        state = _state(model, optimizer)
        try:
            dcp.load(state, checkpoint_id=path)
        except CheckpointException as error:  # a shard is missing, or it is of another model
            raise TrainError(f"{path} cannot be continued: {self._first_failure(error)}") from error
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return files.step_of(path)

    def begin(self) -> None:
        """Begin a new run: set the checkpoints of an earlier run aside."""
        if self.group.rank == 0:
            files.set_aside(self.folder, after=-1)
        self.group.barrier()

    def _first_failure(self, error: CheckpointException) -> str:
        """Return what went wrong on the lowest rank; torch's own text has the tracebacks of all ranks."""
        rank = min(error.failures)
        return f"rank {rank} ({self.group.hosts[rank]}): {error.failures[rank][0]}"


def _is_complete(path: Path) -> bool:
    return (path / COMPLETE).exists()


def _state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Return this rank's shards; loading replaces them in place."""
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}


def _copied(leaf: Any) -> Any:
    """Return a copy of a tensor on the CPU, sharded or not; anything else as it is."""
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" else leaf
