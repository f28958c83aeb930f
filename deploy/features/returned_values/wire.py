"""Values for JSON and back: None, bool, int, float, str, bytes, list, tuple, set, frozenset and dict.

A function returns such a value to the program that has sent it to the ranks (deploy/api). Other values would
need pickle, and to unpickle what a host sends would run its code on this machine.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable
from typing import Any, Callable

# A value that JSON does not have is an object with one key, which no other object may have.
_TAG = "\0"
_LISTS: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset"}
_MAKE: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda items: tuple(map(decoded, items)),
    "set": lambda items: set(_hashed(items)),
    "frozenset": lambda items: frozenset(_hashed(items)),
    "dict": lambda pairs: dict(zip(_hashed(key for key, _ in pairs), [decoded(value) for _, value in pairs])),
    "bytes": base64.b64decode,
}


MOST_ALIKE = 256
"""Values of a set, or keys of a dictionary, with the same hash. With more, to make it takes quadratic time:
anyone can compute the hash of a number or tuple. Honest programs have few: -1 and -2 have the same."""


def _hashed(items: Iterable[Any]) -> list[Any]:
    """The values of a set, or the keys of a dictionary; ValueError if too many have the same hash."""
    values = [decoded(item) for item in items]
    if max(Counter(map(hash, values)).values(), default=0) > MOST_ALIKE:
        raise ValueError(f"more than {MOST_ALIKE} values have the same hash")
    return values


def encoded(value: object, path: str = "it") -> Any:
    """The value for JSON; TypeError that names the part of another type.

    An object of a subclass, such as a numpy.float64, becomes one of the base class.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float, str)):
        return next(kind(value) for kind in (int, float, str) if isinstance(value, kind))
    if isinstance(value, bytes):
        return {_TAG + "bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        if all(type(key) is str and not key.startswith(_TAG) for key in value):
            return {key: encoded(item, f"{path}[{key!r}]") for key, item in value.items()}
        pairs = value.items()
        keyed = [[encoded(key, path), encoded(item, f"{path}[{key!r}]")] for key, item in pairs]
        return {_TAG + "dict": keyed}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [encoded(item, f"{path}[{index}]") for index, item in enumerate(value)]
        tag = next((tag for kind, tag in _LISTS.items() if isinstance(value, kind)), "")
        return {_TAG + tag: items} if tag else items
    kind = type(value)
    raise TypeError(f"{path} is a {kind.__module__}.{kind.__qualname__}")


def decoded(value: Any) -> Any:
    """The value again; ValueError, TypeError or RecursionError for other objects than those of `encoded`."""
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    first = next(iter(value), "")
    if not first.startswith(_TAG):
        return {key: decoded(item) for key, item in value.items()}
    if len(value) != 1 or first[1:] not in _MAKE:
        raise ValueError("an unknown type")
    return _MAKE[first[1:]](value[first])
