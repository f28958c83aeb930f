"""Describes a call of torch.distributed: its arguments by name, the size of its tensors, its text in a slot.

Also the backward passes of DistributedDataParallel, whose C++ starts collectives without a call in Python.
muster_recorder.py uses this for each call. Standard library only, Python 3.9.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .muster_ring import quoted
else:  # in a rank, it lies beside this file
    from muster_ring import quoted

_quoted = functools.lru_cache(maxsize=4096)(quoted)


class CallArguments:
    """The arguments of a call, by their names."""

    def __init__(self, positions: dict[str, int], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self._positions, self._args, self._kwargs = positions, args, kwargs

    def __call__(self, name: str) -> Any:
        if name in self._kwargs:
            return self._kwargs[name]
        position = self._positions.get(name, len(self._args))
        return self._args[position] if position < len(self._args) else None


def positions_of(function: Any) -> dict[str, int]:
    """The position of each argument that may be positional."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = function.__code__
    return {name: position for position, name in enumerate(code.co_varnames[: code.co_argcount])}


def sizes_of(tensors: Any) -> tuple[str, int, int]:
    """Type, elements and bytes of a tensor or of several."""
    each = [tensors] if hasattr(tensors, "numel") else list(tensors or ())
    if not each:
        return "", 0, 0
    elements = sum([tensor.numel() for tensor in each])
    return str(each[0].dtype)[6:], elements, elements * each[0].element_size()


def text_of(op: str, where: str, dtype: str, elements: int, size: int) -> bytes:
    """The description of a collective or message, as a part of a slot."""
    text = b'"op":%s,"where":%s,"dtype":%s,"elements":%d,"bytes":%d'
    return text % (_quoted(op, 40), _quoted(where, 100, last=True), _quoted(dtype, 16), elements, size)


# -- DDP --


class PassRecorder(Protocol):
    """Notes the beginning and the end of a backward pass; neither method raises."""

    def begin_pass(self, group: Any) -> int: ...
    def end_work(self, slot: int, *, failed: bool = False) -> None: ...


class _NextPass(threading.local):
    """The group of the DDP whose next backward pass in this thread sums gradients."""

    group: Any = None


def watch_backward(torch: Any, recorder: PassRecorder) -> None:
    """Record the passes of every DDP, for a torch whose own recorder supports only NCCL (2.6).

    All ranks do the same number of synchronised passes, so a pass counts as a collective of DDP's group.
    `AttributeError` if this torch has other internals.
    """
    reducer, next_pass = torch._C._distributed_c10d.Reducer, _NextPass()
    prepare, backward = reducer.prepare_for_backward, torch.autograd.backward

    def prepare_for_backward(self: Any, *args: Any) -> Any:
        ddp = sys._getframe(1).f_locals.get("self")  # DDP calls it itself, unless under no_sync()
        next_pass.group = getattr(ddp, "process_group", None)
        return prepare(self, *args)

    @functools.wraps(backward)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        group, next_pass.group = next_pass.group, None
        slot, failed = (recorder.begin_pass(group) if group else 0), True
        try:
            result = backward(*args, **kwargs)
            failed = False
            return result
        finally:
            recorder.end_work(slot, failed=failed)

    reducer.prepare_for_backward = prepare_for_backward
    torch.autograd.backward = recorded
