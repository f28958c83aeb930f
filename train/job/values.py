"""Small values that ranks exchange: JSON in byte tensors, checked against the shape that the caller expects.

Never pickle: to unpickle is to run what the sender wrote, so one compromised host would run code on all.
The first message of a value has its size and, if it fits, the value itself. So most values take one
collective, and a size is checked before memory is spent on it.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from reprlib import Repr
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch
import torch.distributed as dist

from .failure import TrainError

FIRST = 256  # bytes of the first message
SIZE = 8  # bytes of it that have the size of the value
WHAT = 16  # bytes after these: what the value is, so that unlike values never meet
HEAD = SIZE + WHAT
AT_MOST = 1 << 20
"""Bytes that a value may take as JSON, unless the caller says otherwise."""

# What a text that is no such value raises: OverflowError for a whole number that no float can hold.
_WRONG = (TypeError, ValueError, OverflowError, RecursionError)

_short = Repr()
_short.maxstring = _short.maxother = 60


def gathered(text: str, names: Sequence[str], device: torch.device, at_most: int, what: str) -> list[bytes]:
    """Return every rank's text, in rank order; `names` are those of the ranks, for errors.

    Raises TrainError, the same on every rank, if one is longer than `at_most` bytes, or is not `what`.
    """
    if len(names) == 1:
        return [text.encode()]
    return _exchanged(text, names, at_most, what, lambda sent: _all_gather(sent, len(names), device))


def from_rank_0(text: str, name: str, device: torch.device, at_most: int, what: str) -> bytes:
    """Return the text of rank 0, which is called `name`, on every rank; errors as for `gathered`."""
    return _exchanged(text, [name], at_most, what, lambda sent: [_broadcast(sent, device)])[0]


def _exchanged(
    text: str, names: Sequence[str], at_most: int, what: str, exchange: Callable[[bytes], list[bytes]]
) -> list[bytes]:
    sent, room = text.encode(), FIRST - HEAD
    mine = _first(sent, what)
    firsts = exchange(mine)
    sizes = [_size(first, name, at_most) for first, name in zip(firsts, names, strict=True)]
    for first, name in zip([*firsts, mine], [*names, "this rank"], strict=True):
        _refuse_other(first, name, firsts[0], names[0])
    rest = max(sizes) - room
    rests = exchange(sent[room:].ljust(rest, b"\0")) if rest > 0 else [b""] * len(names)
    return [(first[HEAD:] + more)[:size] for first, more, size in zip(firsts, rests, sizes, strict=True)]


def _first(sent: bytes, what: str) -> bytes:
    head = len(sent).to_bytes(SIZE, "big") + what.encode()[:WHAT].ljust(WHAT)
    return (head + sent[: FIRST - HEAD]).ljust(FIRST, b"\0")


def _refuse_other(first: bytes, name: str, other: bytes, its_name: str) -> None:
    what, its = (message[SIZE:HEAD].decode(errors="replace").strip() for message in (first, other))
    if what != its:
        raise TrainError(
            f"the ranks do different things: {name} exchanges {_short.repr(what)}, "
            f"and {its_name} {_short.repr(its)}\nevery rank must make the same calls in the same order"
        )


def _size(first: bytes, name: str, at_most: int) -> int:
    size = int.from_bytes(first[:SIZE], "big")
    if size > at_most:
        raise TrainError(f"{name} sends a value of {size} bytes, where at most {at_most} are expected")
    return size


def _all_gather(sent: bytes, world_size: int, device: torch.device) -> list[bytes]:
    got = [torch.empty(len(sent), dtype=torch.uint8, device=device) for _ in range(world_size)]
    dist.all_gather(got, _tensor(sent, device))
    return [row.tobytes() for row in torch.stack(got).cpu().numpy()]


def _broadcast(sent: bytes, device: torch.device) -> bytes:
    tensor = _tensor(sent, device)
    dist.broadcast(tensor, src=0)
    return tensor.cpu().numpy().tobytes()


def _tensor(data: bytes, device: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)


def encoded(value: Any, at_most: int = AT_MOST) -> str:
    """Return `value`, JSON or dataclasses of JSON, as it travels; raises TrainError if it cannot."""
    try:
        text = json.dumps(value, default=asdict)  # in ASCII
    except _WRONG as error:
        raise TrainError(
            f"ranks exchange JSON, and not {_short.repr(value)}: {error}\n"
            "send tensors with torch.distributed, other objects as text or numbers"
        ) from None
    if len(text) > at_most:
        raise TrainError(f"a value of {len(text)} bytes as JSON: at most {at_most} travel (at_most=)")
    return text


def decoded(sent: bytes, shape: Any, name: str) -> Any:
    """Return the value that the sender called `name` has encoded, as `shape`; Any is any JSON value.

    Raises TrainError if it is something else.
    """
    try:
        return _reader(shape)(json.loads(sent))
    except _WRONG as error:
        expected = shape if get_args(shape) else getattr(shape, "__name__", shape)
        raise TrainError(
            f"no {expected} from {name}: {error}\n"
            "does it run the same program, and the same version of muster.train?"
        ) from None


@cache
def _reader(shape: Any) -> Callable[[Any], Any]:
    """Return the function that checks a value of a shape; made once."""
    origin, args = get_origin(shape), get_args(shape)
    if shape is Any:
        return lambda value: value
    if origin in {Union, types.UnionType}:
        (inner,) = (_reader(each) for each in args if each is not types.NoneType)
        return lambda value: None if value is None else inner(value)
    if origin is list:
        item = _reader(args[0])
        return lambda value: [item(each) for each in _plain(list, value)]
    if origin is tuple:
        return _tuple_of([_reader(each) for each in args])
    if is_dataclass(shape):
        return _dataclass(shape)
    return lambda value: _plain(shape, value)


def _plain(kind: Any, value: Any) -> Any:
    """Return `value` if it is of a type; a whole number is a float as well, and True is no number."""
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, got {_short.repr(value)}")
    return value


def _tuple_of(items: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if len(_plain(list, value)) != len(items):
            raise ValueError(f"expected {len(items)} values, got {len(value)}")
        return tuple(item(each) for item, each in zip(items, value, strict=True))

    return read


def _dataclass(kind: Any) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields(kind)}

    def read(value: Any) -> Any:
        if _plain(dict, value).keys() != readers.keys():
            raise ValueError(f"expected the fields {', '.join(readers)}")
        return kind(**{name: reader(value[name]) for name, reader in readers.items()})

    return read
