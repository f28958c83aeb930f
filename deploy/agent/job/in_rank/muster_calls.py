"""What a call of torch.distributed is: its arguments by name, the size of its tensors, its text in a slot.

muster_recorder.py asks this of each call. Standard library only, Python 3.9.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .muster_ring import quoted
else:  # sitecustomize.py has loaded it: its folder is not on the path
    quoted = sys.modules["muster_ring"].quoted

_quoted = functools.lru_cache(maxsize=4096)(quoted)


class Given:
    """The arguments of a call, by their names."""

    def __init__(self, places: dict[str, int], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self._places, self._args, self._kwargs = places, args, kwargs

    def __call__(self, name: str) -> Any:
        if name in self._kwargs:
            return self._kwargs[name]
        place = self._places.get(name, len(self._args))
        return self._args[place] if place < len(self._args) else None


def places_of(function: Any) -> dict[str, int]:
    """The place of each argument that may be given without its name."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = function.__code__
    return {word: place for place, word in enumerate(code.co_varnames[: code.co_argcount])}


def sizes_of(tensors: Any) -> tuple[str, int, int]:
    """Type, elements and bytes of a tensor or of several."""
    each = [tensors] if hasattr(tensors, "numel") else list(tensors or ())
    if not each:
        return "", 0, 0
    elements = sum([tensor.numel() for tensor in each])
    return str(each[0].dtype)[6:], elements, elements * each[0].element_size()


def text_of(op: str, where: str, dtype: str, elements: int, size: int) -> bytes:
    """What a collective or message is, as the part of a slot."""
    text = b'"op":%s,"where":%s,"dtype":%s,"elements":%d,"bytes":%d'
    return text % (_quoted(op, 40), _quoted(where, 100, last=True), _quoted(dtype, 16), elements, size)
