"""Plain values from outside, checked against the types that they should have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

NONSENSE = (KeyError, TypeError, ValueError)
"""What `from_json` raises: a host may say anything."""


def from_json(kind: Any, value: Any) -> Any:
    """The value as `kind`: a dataclass, a tuple or mapping, a path, one of some words, or a plain type.

    Anything else is an error.
    """
    if isinstance(kind, type) and is_dataclass(kind):
        return kind(**{name: from_json(inner, value[name]) for name, inner in _fields(kind).items()})
    if get_origin(kind) is tuple:
        return tuple(from_json(get_args(kind)[0], one) for one in from_json(list, value))
    if get_origin(kind) is Mapping:
        return {str(name): from_json(get_args(kind)[1], one) for name, one in from_json(dict, value).items()}
    if kind is Path:
        return Path(from_json(str, value))
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ValueError(f"expected one of {get_args(kind)}, got {value!r}")
        return value
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind}, got {value!r}")
    return value


@cache
def _fields(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
