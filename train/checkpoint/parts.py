"""The tensors of a state, a tree of dicts and lists: which part of each this rank holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

SMALL = 4096  # bytes


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a tensor: it begins at `offset` and has `shape`; the tensor has the shape `whole`."""

    offset: list[int]
    shape: list[int]
    whole: list[int]

    @classmethod
    def all_of(cls, shape: Sequence[int]) -> Box:
        return cls([0] * len(shape), list(shape), list(shape))

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def common(self, other: Box) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
        """Return what both have, as slices of each; None if they have nothing in common."""
        mine, theirs = [], []
        for here, length, there, wide in zip(self.offset, self.shape, other.offset, other.shape, strict=True):
            first, last = max(here, there), min(here + length, there + wide)
            if first >= last:
                return None
            mine.append(slice(first - here, last - here))
            theirs.append(slice(first - there, last - there))
        return tuple(mine), tuple(theirs)


@dataclass(frozen=True, slots=True)
class Part:
    """A part that a file has, by the name of its tensor."""

    name: str
    box: Box


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of a checkpoint: `shape` is that of the whole, and `read` returns a part, on the CPU.

    What `read` returns may be mapped from a file.
    """

    shape: list[int]
    read: Callable[[Box], torch.Tensor]
    name: str = ""

    def whole(self) -> torch.Tensor:
        return self.read(Box.all_of(self.shape)).clone()


def stored(tensor: torch.Tensor) -> Stored:
    """Return a whole tensor that is there, as one of a checkpoint."""
    shape = list(tensor.shape)

    def read(box: Box) -> torch.Tensor:
        if box.shape == shape:
            return tensor
        return tensor[tuple(slice(at, at + n) for at, n in zip(box.offset, box.shape, strict=True))]

    return Stored(shape, read)


def sharded_like(tensor: torch.Tensor, stored: Stored, *, copy: bool = False) -> torch.Tensor:
    """Return the part of `stored` that this rank holds of `tensor`, sharded in the same way."""
    part = stored.read(box_of(tensor))
    if not isinstance(tensor, DTensor):
        return part.clone() if copy else part
    local = part.to(tensor.device, copy=copy)
    if local.device.type != tensor.device_mesh.device_type:  # offloaded: from_local would move it to the GPU
        return DTensor(local, tensor._spec, requires_grad=False)  # type: ignore[no-untyped-call]
    return DTensor.from_local(
        local,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def box_of(tensor: torch.Tensor) -> Box:
    """Return which part of a tensor this rank holds."""
    whole = list(tensor.shape)
    if not isinstance(tensor, DTensor):
        return Box.all_of(whole)
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Box(list(offset), list(shape), whole)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _writes(tensor: torch.Tensor, rank: int) -> bool:
    """Whether this rank writes its part: of ranks with the same part the first does."""
    if not isinstance(tensor, DTensor):
        return rank == 0
    place = tensor.device_mesh.get_coordinate()
    copies = (
        at for at, how in zip(place or (), tensor.placements, strict=False) if isinstance(how, Replicate)
    )
    return place is not None and not any(copies)


def copied(tree: Any, rank: int) -> tuple[list[Part], dict[str, Any]]:
    """Copy what this rank writes of a state to host memory; the training may then change it.

    The second value is the contents of its file: its tensors, and the whole tree. There, tensors have only a
    shape and a type, except small ones that are not sharded, such as an optimizer's count of steps: every
    rank needs these, and needs no file of another rank for them then.
    """
    parts, tensors = [], []

    def without_data(name: str, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if not isinstance(leaf, DTensor) and leaf.nbytes <= SMALL:
            return leaf.detach().to("cpu", copy=True)
        if _writes(leaf, rank) and (box := box_of(leaf)).size:
            parts.append(Part(name, box))
            tensors.append(local(leaf).detach().to("cpu", copy=True).contiguous())
        return torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")

    shape = mapped(tree, without_data)
    return parts, {"tensors": tensors, "tree": shape}


def mapped(tree: Any, change: Callable[[str, Any], Any], name: str = "") -> Any:
    """Return `tree` in new dicts, lists and tuples, with the result of change(name, leaf) for each leaf.

    The name of a leaf is its path, /model/0.weight.
    """
    if isinstance(tree, Mapping):
        return {key: mapped(value, change, f"{name}/{key}") for key, value in tree.items()}
    if type(tree) in {list, tuple}:
        return type(tree)(mapped(value, change, f"{name}/{number}") for number, value in enumerate(tree))
    return change(name, tree)


def leaves(tree: Any) -> list[Any]:
    """Return the leaves of `tree`."""
    found: list[Any] = []
    mapped(tree, lambda _, leaf: found.append(leaf))
    return found
