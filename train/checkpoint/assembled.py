"""A sharded checkpoint as one tree: tensors are put together from the files that have their parts."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from .parts import Box, Stored, stored
from .shards import Index, Unfit, data_of, name_of, read
from .tree import mapped


class Assembled:
    """The files of a checkpoint in `folder`, by the indices of all ranks of its save."""

    def __init__(self, folder: Path, indices: Sequence[Index]) -> None:
        self.folder, self.indices = folder, indices
        self.places: dict[str, list[tuple[int, int, Box]]] = {}
        self.open: dict[int, list[torch.Tensor]] = {}
        for file, index in enumerate(self.indices):
            for number, part in enumerate(index.parts):
                self.places.setdefault(part.name, []).append((file, number, part.box))

    def path(self, file: int) -> Path:
        """Return the path of the files of a rank, without suffix."""
        return self.folder / name_of(file, len(self.indices))

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
            raise Unfit(f"{name} has the size {other[0]} in one file and {whole} in another")
        if sum(box.size for *_, box in there) != math.prod(whole):
            raise Unfit(f"{name} is not there as a whole")
        return Stored(whole, lambda box: self._read(name, box, leaf.dtype), name)

    def files_with(self, name: str, box: Box) -> Iterator[int]:
        """Yield the files that have a part of this part of a tensor."""
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
            raise Unfit(f"{name} is not there as a whole")
        return torch.empty(box.shape, dtype=dtype) if made is None else made

    def _tensors(self, file: int) -> list[torch.Tensor]:
        if file not in self.open:
            self.open[file], _ = read(self.path(file), self.indices[file])
        return self.open[file]

    def shape(self) -> bytes:
        """Return the tree without data, as rank 0 wrote it, as it travels."""
        _, tree = read(self.path(0), self.indices[0])
        buffer = io.BytesIO()
        torch.save(tree, buffer)
        return buffer.getvalue()


def shape_of(data: bytes) -> Any:
    """Return the tree that `Assembled.shape` has put into `data`; raises Unfit, and runs no code of it."""
    return data_of(io.BytesIO(data), "the list of tensors")
