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

import io
import itertools
import math
import secrets
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..job.failure import TrainError
from ..job.long_work import others_wait
from . import files, shards
from .core import SAME, BaseCheckpoints, Finding, Found, Good
from .parts import Box, Stored, copied, mapped, stored
from .spread import Copies, Lane, along
from .state import put_back, refuse_other, taken, wanted, weights_of


class ShardedCheckpoints(BaseCheckpoints):
    """The newest `keep` checkpoints of a sharded model, in `out` of every host.

    The methods are those of Checkpoints. Every one must be called on every rank.
    """

    FILE = shards.NAME

    step, again = -1, False
    """Of the checkpoint that is written, and whether it replaces an earlier one of its step."""

    def _open(self, replaced: Iterable[int]) -> None:
        """Where one disk began to replace a step, the new files were complete on all."""
        super()._open({*itertools.chain.from_iterable(self.group.all_gather([*replaced], list[int]))})
        self.copies = Copies.of(self.group, self.disks)
        self.writer = ThreadPoolExecutor(1, "checkpoint")
        self.written: Future[None] | None = None

    def save(self, step: int, states: Mapping[str, Any]) -> None:
        """Begin to write the checkpoint of `step`: returns as soon as this rank's shards are copied.

        Waits for the checkpoint before. Raises TrainError if that could not be written, and as
        Checkpoints.save does.
        """
        self.finish()
        self.group.check_finite(step, weights_of(states))
        tree = taken({SAME: self.same, **states}, writers=(0,))
        path = files.path_of(self.folder, step)
        if self.leads:  # what a failed save left of this step
            shutil.rmtree(path.with_suffix(files.BESIDE), ignore_errors=True)
        # A barrier too: no rank writes before the folder is removed.
        self.again = any(self.group.all_gather(path.exists(), bool))
        if self.again:  # an earlier save of this step stays until this one is complete
            path = path.with_suffix(files.BESIDE)
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
            except (OSError, files.Unfit) as error:
                why = str(error)
        self._raise_together(f"cannot write a checkpoint to {self.folder}", why)
        if self.again:
            if self.leads:
                files.replace(files.path_of(self.folder, self.step))
            self.group.barrier()  # no disk removes the earlier save before all have replaced it
        if self.leads:
            files.set_aside(self.folder, after=self.step)  # what an earlier run left
            files.prune(self.folder, self.keep)

    def _newest(self, path: Path | None, say: Callable[[str], None]) -> Found | None:
        if path is not None:  # the checkpoints of another folder may be on other hosts
            raise TrainError(f"sharded checkpoints resume in their own folder, {self.folder}: not {path}")
        self.finish()
        here = [files.step_of(stored) for stored in files.stored(self.folder)] if self.leads else []
        return self._newest_of(here, self._verified, say)

    def _verified(self, step: int) -> Finding:
        """Verify this rank's share of the files of a step: the ranks of a disk share the work."""
        folder, sharing = (
            files.path_of(self.folder, step),
            self.disks.ranks(self.disks.of_rank[self.group.rank]),
        )
        good, damage = [], []
        for name in shards.names(folder)[sharing.index(self.group.rank) :: len(sharing)]:
            try:
                good.append(Good(name, shards.verified(folder / name).save))
            except files.Unfit as unfit:
                damage.append(f"step {step}: {folder}: {unfit}")
        return Finding(good, damage)

    def _continue(self, found: Found, states: MutableMapping[str, Any], path: Path | None) -> None:
        folder, why = files.path_of(self.folder, found.step), ""
        assembled = Assembled(folder, self._indices(found, folder))
        tree = self._tree(found, assembled)
        self._refuse_other_options(tree.get(SAME, {}))
        refuse_other(states, tree)
        needed = (assembled.files_with(there.name, box) for there, box in wanted(states, tree))
        self._fetch(found, assembled, set(itertools.chain.from_iterable(needed)))
        with others_wait(self.group):
            try:
                put_back(states, tree)
            except files.Unfit as unfit:
                why = str(unfit)
        self._raise_together(f"{folder} cannot be continued", why)
        self._set_aside(after=found.step)
        self.say(f"resumed from step {found.step}, which {len(found.holders)} ranks saved")

    def _indices(self, found: Found, path: Path) -> list[shards.Index]:
        """Return what the files of each rank have: one holder of each tells the others."""
        mine, why = list[str](), ""
        for file, holders in enumerate(found.holders):
            if holders[0] == self.group.rank:
                try:
                    index = shards.read_index(path / shards.name_of(file, len(found.holders)))
                    mine.append(shards.encoded(index).decode())
                except files.Unfit as unfit:
                    why = str(unfit)
        self._raise_together(f"{path} cannot be continued", why)
        told = [iter(texts) for texts in self.group.all_gather(mine, list[str], at_most=shards.INDEX_AT_MOST)]
        indices = []
        for file, holders in enumerate(found.holders):
            name = f"{shards.name_of(file, len(found.holders))} of {self.group.hosts[holders[0]]}"
            try:
                indices.append(shards.checked_index(next(told[holders[0]], "").encode(), name))
            except files.Unfit as unfit:
                raise TrainError(f"{path} cannot be continued: {unfit}") from unfit
        return indices

    def _tree(self, found: Found, assembled: Assembled) -> dict[str, Any]:
        """Return the tree of the checkpoint, as a holder of the files of rank 0 sends it to all."""
        source, data, why = found.holders[0][0], b"", ""
        try:
            data = assembled.shape() if self.group.rank == source else b""
        except files.Unfit as unfit:
            why = str(unfit)
        self._raise_together(f"{assembled.folder} cannot be continued", why)
        size = self.group.all_gather(len(data), int)[source]
        sent = torch.frombuffer(bytearray(data or bytes(size)), dtype=torch.uint8).to(self.group.device)
        dist.broadcast(sent, src=source)
        try:
            shape = shards.data_of(io.BytesIO(sent.cpu().numpy().tobytes()), "the list of tensors")
            tree = assembled.tree(shape)
        except files.Unfit as unfit:
            raise TrainError(f"{assembled.folder} cannot be continued: {unfit}") from unfit
        if not isinstance(tree, dict):
            raise TrainError(f"{assembled.folder} is no checkpoint of this program")
        return tree

    def _fetch(self, found: Found, assembled: Assembled, mine: set[int]) -> None:
        """Fetch the files that a disk lacks and its ranks need, each along a chain from one that has them."""
        needed = self.group.all_gather(sorted(mine), list[int])
        of_disk = {
            disk: set().union(*(needed[rank] for rank in self.disks.ranks(disk))) for disk in self.disks.every
        }
        lane, fetched, why = Lane(self.group.device), dict.fromkeys(self.disks.every, 0), ""
        with others_wait(self.group):
            for file, index in enumerate(assembled.indices):
                there = {self.disks.of_rank[holder] for holder in found.holders[file]}
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
                        if self.group.rank == chain[0]:
                            deque(pieces, maxlen=0)  # sends them
                        else:
                            shards.write_received(path, index, pieces)
                    except (OSError, files.Unfit) as error:
                        why = str(error)
        self._raise_together(f"cannot fetch a checkpoint to {self.folder}", why)
        for disk, number in fetched.items():
            if number:
                of_all = f"{number} of {len(found.holders)} files"
                self.say(f"{self.group.hosts[disk]}: got {of_all} of step {found.step}")


class Assembled:
    """The files of a checkpoint in `folder`, by the indices of all ranks of its save."""

    def __init__(self, folder: Path, indices: Sequence[shards.Index]) -> None:
        self.folder, self.indices = folder, indices
        self.places: dict[str, list[tuple[int, int, Box]]] = {}
        self.open: dict[int, list[torch.Tensor]] = {}
        for file, index in enumerate(self.indices):
            for number, part in enumerate(index.parts):
                self.places.setdefault(part.name, []).append((file, number, part.box))

    def path(self, file: int) -> Path:
        return self.folder / shards.name_of(file, len(self.indices))

    def tree(self, shape: Any) -> Any:
        """Return the tree of this `shape`, with tensors to read. Raises Unfit if a part is missing."""
        return mapped(
            shape, lambda name, leaf: self._stored(name, leaf) if isinstance(leaf, torch.Tensor) else leaf
        )

    def _stored(self, name: str, leaf: torch.Tensor) -> Stored:
        if not leaf.is_meta:
            return stored(leaf)
        whole, there = list(leaf.shape), self.places.get(name, [])
        if other := [box.whole for *_, box in there if box.whole != whole]:
            raise files.Unfit(f"{name} has the size {other[0]} in one file and {whole} in another")
        if sum(box.size for *_, box in there) != math.prod(whole):
            raise files.Unfit(f"{name} is not there as a whole")
        return Stored(whole, lambda box: self._read(name, box, leaf.dtype), name)

    def files_with(self, name: str, box: Box) -> Iterator[int]:
        for file, _, part in self.places.get(name, []):
            if box.common(part) is not None:
                yield file

    def _read(self, name: str, box: Box, dtype: torch.dtype) -> torch.Tensor:
        made, found = None, 0
        for file, number, part in self.places.get(name, []):
            if (both := box.common(part)) is None:
                continue
            tensor = self._tensors(file)[number]
            if part == box and tensor.dtype == dtype:
                return tensor  # nothing is copied
            made = torch.empty(box.shape, dtype=dtype) if made is None else made
            made[both[0]].copy_(tensor[both[1]])
            found += made[both[0]].numel()
        if found != box.size:
            raise files.Unfit(f"{name} is not there as a whole")
        return torch.empty(box.shape, dtype=dtype) if made is None else made

    def _tensors(self, file: int) -> list[torch.Tensor]:
        if file not in self.open:
            self.open[file], _ = shards.read(self.path(file), self.indices[file])
        return self.open[file]

    def shape(self) -> bytes:
        """Return the tree without data, as rank 0 wrote it, as it travels."""
        _, tree = shards.read(self.path(0), self.indices[0])
        buffer = io.BytesIO()
        torch.save(tree, buffer)
        return buffer.getvalue()
