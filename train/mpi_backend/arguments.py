"""What a caller may pass. It is checked here, before anything is sent, and nowhere else.

So a mistake of a program is a ValueError where it calls, and the group can still be used. If only some ranks
make it, the others wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from .library import MPI

Tensors = Sequence[torch.Tensor]

PLAIN = (torch.Tensor, torch.nn.Parameter)


def read(tensor: torch.Tensor) -> None:
    """Check a tensor that is sent."""
    if type(tensor) not in PLAIN and not _has_memory(tensor):
        raise ValueError(f"a {type(tensor).__name__} has no memory of its own; pass a torch.Tensor")
    _on_device(tensor)
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "that is nested" if tensor.is_nested else f"of layout {tensor.layout}"
        raise ValueError(f"a tensor {kind} is not supported here; use to_dense()")


def written(tensor: torch.Tensor) -> None:
    """Check a tensor that holds a result. One that is only sent may have any strides."""
    read(tensor)
    if not tensor.is_contiguous() and _shares_memory(tensor):
        raise ValueError(
            f"a tensor of shape {list(tensor.shape)} and strides {tensor.stride()} cannot hold a result: "
            "its elements share memory; use contiguous()"
        )


def in_place(tensors: Tensors) -> None:
    """Check the tensors of a collective that replaces them."""
    if not tensors:
        raise ValueError("there is no tensor")
    for tensor in tensors:
        written(tensor)


def sparse(tensors: Tensors) -> None:
    """Check COO tensors that are added up in place."""
    for tensor in tensors:
        _on_device(tensor)
        if not tensor.is_sparse:
            raise ValueError(f"a tensor of layout {tensor.layout} cannot be added to sparse ones")
        _check_coalesces(tensor.dtype)


def root(rank: int, size: int) -> None:
    """Check the rank of a root."""
    if not 0 <= rank < size:
        raise ValueError(f"there is no rank {rank}: the group has ranks 0 to {size - 1}")


def gathered(outputs: Tensors, tensor: torch.Tensor, size: int) -> None:
    """Check a list that receives every rank's `tensor`. They may differ in size."""
    read(tensor)
    _one_for_each_rank(outputs, size)
    for output in outputs:
        written(output)
        same_type(output, tensor)


def scattered(inputs: Tensors, output: torch.Tensor, size: int) -> None:
    """Check a list of which each rank gets one. They may differ in size."""
    written(output)
    _one_for_each_rank(inputs, size)
    for tensor in inputs:
        read(tensor)
        same_type(output, tensor)


def reduced(inputs: Tensors, output: torch.Tensor, rank: int, size: int) -> None:
    """Check a list of which each rank gets the reduction of one."""
    scattered(inputs, output, size)
    if inputs[rank].numel() != output.numel():
        raise ValueError(f"an output of {output.numel()} elements for {inputs[rank].numel()}")


def whole_from_parts(wholes: Tensors, parts: Tensors, size: int) -> None:
    """Check tensors that receive every rank's part, one after the other."""
    pairs(wholes, parts)
    for whole, part in zip(wholes, parts, strict=True):
        written(whole)
        read(part)
        _divides(whole, part, size)


def parts_of_whole(parts: Tensors, wholes: Tensors, size: int) -> None:
    """Check tensors that receive this rank's part of a whole."""
    pairs(parts, wholes)
    for part, whole in zip(parts, wholes, strict=True):
        written(part)
        read(whole)
        _divides(whole, part, size)


def exchanged(outputs: Tensors, inputs: Tensors, size: int) -> None:
    """Check a tensor for each rank, and a tensor from each."""
    _one_for_each_rank(inputs, size)
    gathered(outputs, inputs[0], size)
    scattered(inputs, outputs[0], size)


def rows_exchanged(
    output: torch.Tensor,
    tensor: torch.Tensor,
    output_sizes: Sequence[int],
    input_sizes: Sequence[int],
    size: int,
) -> None:
    """Check a tensor with rows for each rank, and one with rows from each; without sizes, equal parts."""
    read(tensor)
    written(output)
    same_type(output, tensor)
    _rows(tensor, input_sizes, size)
    _rows(output, output_sizes, size)
    if not (output_sizes or input_sizes) and output.numel() != tensor.numel():
        raise ValueError(f"an output of {output.numel()} elements for an input of {tensor.numel()}")


def _rows(tensor: torch.Tensor, sizes: Sequence[int], size: int) -> None:
    """Check that `tensor` has `sizes` rows for each rank; without sizes, equal parts."""
    if tensor.dim() == 0:
        raise ValueError("a tensor without dimensions has no rows to divide")
    count = tensor.shape[0]
    if not sizes and count % size:
        raise ValueError(f"{count} rows do not divide into equal parts for {size} ranks")
    if sizes and (len(sizes) != size or min(sizes) < 0 or sum(sizes) != count):
        raise ValueError(
            f"split sizes {list(sizes)} do not divide {count} rows among {size} ranks: each rank needs one, "
            "and their sum is the number of rows"
        )


def message(tensor: torch.Tensor, peer: int | None, tag: int, size: int) -> None:
    """Check a message to or from rank `peer`; None is any rank."""
    read(tensor)
    if peer is not None:
        root(peer, size)
    if not 0 <= tag <= _largest_tag():
        raise ValueError(f"the tag {tag} is not between 0 and {_largest_tag()}")


def pairs(outputs: Tensors, inputs: Tensors) -> None:
    """Check two lists of which the tensors belong together."""
    if not outputs or len(outputs) != len(inputs):
        raise ValueError(f"{len(outputs)} outputs for {len(inputs)} inputs")


def same_type(first: torch.Tensor, second: torch.Tensor) -> None:
    """Check that two tensors have the same dtype."""
    if first.dtype != second.dtype:
        raise ValueError(f"the tensors differ in type: {first.dtype} and {second.dtype}")


def _on_device(tensor: torch.Tensor) -> None:
    if not (tensor.is_cpu or tensor.is_cuda):
        raise ValueError(f"a tensor on the device {tensor.device} cannot be sent")


def _has_memory(tensor: torch.Tensor) -> bool:
    """Return whether a tensor of a class of its own is not just a wrapper of others, as a DTensor is."""
    try:
        memory = tensor.untyped_storage()
        return memory.device.type != "meta" and (memory.nbytes() == 0 or memory.data_ptr() != 0)
    except RuntimeError:
        return False


def _shares_memory(tensor: torch.Tensor) -> bool:
    return any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True))


@cache
def _check_coalesces(dtype: torch.dtype) -> None:
    try:
        values = torch.zeros(2, dtype=dtype, device="cpu")
        places = torch.zeros((1, 2), dtype=torch.int64, device="cpu")
        torch.sparse_coo_tensor(places, values, (1,), device="cpu", check_invariants=True).coalesce()
    except RuntimeError as error:
        raise ValueError(f"torch cannot add sparse tensors of {dtype}") from error


def _one_for_each_rank(tensors: Tensors, size: int) -> None:
    if len(tensors) != size:
        raise ValueError(f"a list of {len(tensors)} tensors, where each of the {size} ranks has one")


def _divides(whole: torch.Tensor, part: torch.Tensor, size: int) -> None:
    same_type(whole, part)
    if whole.numel() != part.numel() * size:
        raise ValueError(f"a tensor of {whole.numel()} elements is not {size} parts of {part.numel()} each")


@cache
def _largest_tag() -> int:
    largest: Any = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
    return int(largest)
