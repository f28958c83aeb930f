"""Checkpoints of a sharded model: every rank writes its own shards, while the training goes on.

Every disk keeps the files of its own ranks, and a copy of those of the disk before it: where hosts have disks
of their own a host may be lost with its disk, and a shared disk needs no copies. A restart takes the newest
step whose files are all good on some disk. Each rank reads the parts of the files that it needs, so a
checkpoint fits any number of ranks, and no rank ever holds the whole model; files that are needed and are not
on a disk are fetched, by their checksums, from a host that has them.

shards.py describes the files. torch.distributed.checkpoint has the same idea, but its ranks exchange pickles,
and its `.metadata` is one: a compromised host would run code on all.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..job.failure import TrainError
from ..job.group import Group
from ..job.long_work import others_wait
from ..reporting.terminal import Terminal
from . import files, shards
from .assembled import Assembled, shape_of
from .checkpoints import FOLDER, SAME, lowest_rank_that_sees, refuse_none, refuse_other_options, take
from .copies import Copies
from .disks import Disks
from .found import Found, newest_complete
from .parts import copied
from .spread import Lane, along
from .state import put_back, refuse_other, taken, wanted, weights_of


class ShardedCheckpoints:
    """The newest `keep` checkpoints of a sharded model, in `out` of every host.

    The methods are those of Checkpoints. Every one must be called on every rank.
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
        """Take the arguments of Checkpoints."""
        self.group, self.folder, self.keep, self.same = group, out / FOLDER, keep, dict(same or {})
        self.say = say or Terminal(group.ranks, os.environ).line
        self.disks = Disks(group.all_gather(lowest_rank_that_sees(self.folder, group), int))
        take(self.folder, group, leads=self.leads)
        self.copies = Copies.of(group, self.disks)
        self.writer = ThreadPoolExecutor(1, "checkpoint")
        self.written: Future[None] | None = None
        self.step = -1

    @property
    def leads(self) -> bool:
        """Whether this rank removes and moves checkpoints on its disk."""
        return self.group.rank in self.disks.every

    def save(self, step: int, states: Mapping[str, Any]) -> None:
        """Begin to write the checkpoint of `step`: returns as soon as this rank's shards are copied.

        Waits for the checkpoint before. Raises TrainError if that could not be written, and as
        Checkpoints.save does.
        """
        self.finish()
        self.group.check_finite(step, weights_of(states))
        tree = taken({SAME: self.same, **states}, writers=(0,))
        path = files.path_of(self.folder, step)
        if self.leads:  # what a killed run left of this step
            shutil.rmtree(path, ignore_errors=True)
        # A barrier too: no rank writes before the folder is removed.
        self.group.barrier()
        save = self.group.broadcast(f"{time.time_ns():020d}-{secrets.token_hex(4)}", str)
        parts, contents = copied(tree, self.group.rank)
        mine = path / shards.name_of(self.group.rank, self.group.world_size)
        self.step, self.written = step, self.writer.submit(self._write, mine, save, parts, contents)

    def _write(self, path: Path, save: str, parts: list[Any], contents: dict[str, Any]) -> None:
        written: Path | None = None
        try:
            shards.write(path, save, parts, contents)
            written = path
        finally:  # the neighbour waits for the files, or to hear that there are none
            contents.clear()
            self.copies.exchange(written, path.parent)

    def finish(self) -> None:
        """Wait until the last checkpoint is complete, and remove those that are too old."""
        if self.written is None:
            return
        written, self.written, why = self.written, None, ""
        with others_wait(self.group):
            try:
                written.result()
            except (OSError, shards.Unfit) as error:
                why = str(error)
        self._raise_together(f"cannot write a checkpoint to {self.folder}", why)
        if self.leads:
            files.set_aside(self.folder, after=self.step)  # what an earlier run left
            files.prune(self.folder, self.keep)

    def load(
        self, states: MutableMapping[str, Any], path: Path | None = None, *, required: bool = False
    ) -> int | None:
        """Load the newest complete checkpoint of all hosts into `states`; returns its step, None without one.

        Parts with `load_state_dict` are loaded in place, plain data is replaced in `states`. Raises
        TrainError, with nothing changed, if one is `required` and there is none, if it is of another network
        or of other options, or if a `path` is given: the checkpoints of another folder may be on other hosts.
        """
        if path is not None:
            raise TrainError(f"sharded checkpoints resume in their own folder, {self.folder}: not {path}")
        self.finish()
        lines: list[str] = []
        found, any_there = newest_complete(self.group, self.folder, self.disks, lines.append)
        for line in lines:
            self.say(f"{line}; looking for another")
        if found is None:
            refuse_none(self.folder, lines, self.say, required=required)
            if any_there:
                self.begin()
            return None
        folder, why = files.path_of(self.folder, found.step), ""
        assembled = Assembled(folder, self._indices(found, folder))
        tree = self._tree(found, assembled)
        refuse_other_options(self.same, tree.get(SAME, {}))
        refuse_other(states, tree)
        self._fetch(found, assembled, set(self._needed(states, tree, assembled)))
        with others_wait(self.group):
            try:
                put_back(states, tree)
            except shards.Unfit as unfit:
                why = str(unfit)
        self._raise_together(f"{folder} cannot be continued", why)
        if self.leads:
            files.set_aside(self.folder, after=found.step)
        self.say(f"resumed from step {found.step}, which {found.ranks} ranks saved")
        return found.step

    def begin(self) -> None:
        """Begin a new run: set the checkpoints of an earlier run aside."""
        if self.leads:
            files.set_aside(self.folder, after=-1)
        self.group.barrier()

    def _indices(self, found: Found, path: Path) -> list[shards.Index]:
        """Return what the files of each rank have: one holder of each tells the others."""
        mine, why = list[str](), ""
        for file, holders in enumerate(found.holders):
            if holders[0] == self.group.rank:
                try:
                    index = shards.read_index(path / shards.name_of(file, found.ranks))
                    mine.append(shards.encoded(index).decode())
                except shards.Unfit as unfit:
                    why = str(unfit)
        self._raise_together(f"{path} cannot be continued", why)
        told = [iter(texts) for texts in self.group.all_gather(mine, list[str], at_most=shards.INDEX_AT_MOST)]
        indices = []
        for file, holders in enumerate(found.holders):
            name = f"{shards.name_of(file, found.ranks)} of {self.group.hosts[holders[0]]}"
            try:
                indices.append(shards.checked_index(next(told[holders[0]], "").encode(), name))
            except shards.Unfit as unfit:
                raise TrainError(f"{path} cannot be continued: {unfit}") from unfit
        return indices

    def _tree(self, found: Found, assembled: Assembled) -> dict[str, Any]:
        """Return the tree of the checkpoint, as a holder of the files of rank 0 sends it to all."""
        source, data, why = found.holders[0][0], b"", ""
        try:
            data = assembled.shape() if self.group.rank == source else b""
        except shards.Unfit as unfit:
            why = str(unfit)
        self._raise_together(f"{assembled.folder} cannot be continued", why)
        size = self.group.all_gather(len(data), int)[source]
        sent = torch.frombuffer(bytearray(data or bytes(size)), dtype=torch.uint8).to(self.group.device)
        dist.broadcast(sent, src=source)
        try:
            tree = assembled.tree(shape_of(sent.cpu().numpy().tobytes()))
        except shards.Unfit as unfit:
            raise TrainError(f"{assembled.folder} cannot be continued: {unfit}") from unfit
        if not isinstance(tree, dict):
            raise TrainError(f"{assembled.folder} is no checkpoint of this program")
        return tree

    def _needed(self, states: Mapping[str, Any], tree: dict[str, Any], assembled: Assembled) -> Iterator[int]:
        """Yield the files that have parts of what this rank needs."""
        for stored, box in wanted(states, tree):
            yield from assembled.files_with(stored.name, box)

    def _fetch(self, found: Found, assembled: Assembled, mine: set[int]) -> None:
        """Fetch the files that a disk lacks and its ranks need, each along a chain from one that has them."""
        needed = self.group.all_gather(sorted(mine), list[int])
        of_disk = {
            disk: set().union(*(needed[rank] for rank in self.disks.ranks(disk))) for disk in self.disks.every
        }
        lane, fetched, why = Lane(self.group.device), dict.fromkeys(self.disks.every, 0), ""
        with others_wait(self.group):
            for file, index in enumerate(assembled.indices):
                there = found.disks_with(file, self.disks)
                chain = [
                    found.holders[file][0],
                    *(disk for disk in self.disks.every if file in of_disk[disk] and disk not in there),
                ]
                for disk in chain[1:]:
                    fetched[disk] += 1
                if len(chain) > 1 and self.group.rank in chain:
                    path = assembled.path(file)
                    pieces = along(lane, chain, self.group.rank, path.with_suffix(".pt"), index.size)
                    try:
                        self._pass(path, index, pieces, first=self.group.rank == chain[0])
                    except (OSError, shards.Unfit) as error:
                        why = str(error)
        self._raise_together(f"cannot fetch a checkpoint to {self.folder}", why)
        for disk, number in fetched.items():
            if number:
                self.say(
                    f"{self.group.hosts[disk]}: got {number} of {found.ranks} files of step {found.step}"
                )

    def _pass(self, path: Path, index: shards.Index, pieces: Iterator[torch.Tensor], *, first: bool) -> None:
        if first:
            for _ in pieces:
                pass
        else:
            shards.write_received(path, index, pieces)

    def _raise_together(self, what: str, why: str) -> None:
        """Raise TrainError on every rank if one has a reason `why`; that of the lowest is shown."""
        for rank, reason in enumerate(self.group.all_gather(why, str)):
            if reason:
                raise TrainError(f"{what}: rank {rank} ({self.group.hosts[rank]}): {reason}")
