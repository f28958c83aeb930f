"""Describes a call of torch.distributed: its arguments by name, the size of its tensors, its text in a slot.

Of `init_process_group` also where the ranks meet.

Also the backward passes of DistributedDataParallel, whose C++ starts collectives without a call in Python.
muster_recorder.py uses this for each call. Standard library only, Python 3.9.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl, urlsplit

if TYPE_CHECKING:
    from .muster_ring import quoted
else:  # in a rank, it lies beside this file
    from muster_ring import quoted

MOST_TEXTS = 4096


class CallArguments:
    """The arguments of a call, by their names."""

    __slots__ = ("_args", "_kwargs", "_positions")

    def __init__(self, positions: dict[str, int], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self._positions, self._args, self._kwargs = positions, args, kwargs

    def __call__(self, name: str) -> Any:
        position = self._positions.get(name)
        if position is not None and position < len(self._args):
            return self._args[position]
        return self._kwargs.get(name) if self._kwargs else None


def positions_of(function: Any) -> dict[str, int]:
    """The position of each argument that may be positional."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = function.__code__
    return {name: position for position, name in enumerate(code.co_varnames[: code.co_argcount])}


class CallTexts:
    """The descriptions of collectives and messages, as parts of slots. A loop makes each of them once."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], tuple[bytes, Any]] = {}
        """Each with the code that has made the call, so that no other code gets its address."""

    def text(self, op: str, file: str, frame: FrameType | None, tensors: Any, extra: bytes = b"") -> bytes:
        """`file`: the short name of that of the frame; `tensors`: one, several or none."""
        first, elements = tensors, 0
        if hasattr(tensors, "numel"):
            elements = tensors.numel()
        else:
            each = list(tensors or ())
            first = each[0] if each else None
            elements = sum([tensor.numel() for tensor in each])
        dtype = None if first is None else first.dtype
        code, at = (frame.f_code, frame.f_lasti) if frame else (None, 0)
        key = op, id(code), at, dtype, elements, extra
        made = self._made.get(key)
        if made is None:
            size = elements * first.element_size() if elements else 0
            line = f"{file}:{frame.f_lineno}" if frame else ""
            if len(self._made) >= MOST_TEXTS:  # for example the sizes of ragged batches
                self._made.clear()
            text = _text(op, line, str(dtype)[6:] if dtype else "", elements, size) + extra + b"}\n"
            made = self._made[key] = text, code
        return made[0]


def _text(op: str, line: str, dtype: str, elements: int, size: int) -> bytes:
    text = b'"op":%s,"where":%s,"dtype":%s,"elements":%d,"bytes":%d'
    return text % (quoted(op, 40), quoted(line, 100, last=True), quoted(dtype, 16), elements, size)


# -- rendezvous --


def meeting(call: CallArguments) -> bytes:
    """Where `init_process_group` meets, of how many ranks, and as which: `,"meets":["node1:29500",3,0]`.

    As torch takes them: from its arguments, the query of its URL, or the environment. Empty for values that
    torch refuses.
    """
    try:
        return _find_meeting(call)
    except (TypeError, ValueError):
        return b""


def _find_meeting(call: CallArguments) -> bytes:
    if call("store") is not None:
        return _meeting("", call("world_size"), call("rank"))
    url = urlsplit(call("init_method") or "env://")
    query = dict(parse_qsl(url.query))
    size, rank = (_given(call(name), query.get(name)) for name in ("world_size", "rank"))
    if url.scheme == "file":
        return _meeting(url.path, size, rank)
    if url.scheme == "tcp":
        return _meeting(url.netloc, size, rank)
    address = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
    return _meeting(address, _given(size, os.environ.get("WORLD_SIZE")), _given(rank, os.environ.get("RANK")))


def _given(argument: Any, other: str | None) -> Any:
    """An argument, unless it is missing or -1."""
    return other if argument is None or int(argument) < 0 else argument


def _meeting(address: str, size: Any, rank: Any) -> bytes:
    number, own = (-1 if value is None else int(value) for value in (size, rank))
    return b',"meets":[%s,%d,%d]' % (quoted(address, 100, last=True), number, own)


# -- DDP --


class PassRecorder(Protocol):
    """Notes the beginning and the end of a backward pass; neither method raises."""

    def begin_pass(self, group: Any) -> int: ...
    def end_work(self, entry: int, *, failed: bool = False) -> None: ...


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
        entry, failed = (recorder.begin_pass(group) if group else 0), True
        try:
            result = backward(*args, **kwargs)
            failed = False
            return result
        finally:
            recorder.end_work(entry, failed=failed)

    reducer.prepare_for_backward = prepare_for_backward
    torch.autograd.backward = recorded
