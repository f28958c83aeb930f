"""Plain values from outside, checked against the types that they should have.

A type may have bounds: `Annotated[int, Between(1, 65535)]`, `Annotated[str, AtMost(255)]`. What a host
sends has a bound on every text, number and list (core/connect/requests.py, core/connect/reports.py).
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from reprlib import Repr
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

MALFORMED = (KeyError, TypeError, ValueError, OverflowError, RecursionError)
"""The errors that `json.loads` and `from_json` raise: OverflowError for an integer that is too large for a
float, RecursionError for deep nesting. Their text gives the position of the mismatch, and quotes little."""

_short = Repr()
_short.maxstring = _short.maxother = 60

_Decoder = Callable[[Any], Any]

if TYPE_CHECKING:
    from dataclasses import dataclass as lazy_dataclass

    __all__ = ["lazy_dataclass"]  # mypy takes an import for a name of this module only if it is listed
else:

    def lazy_dataclass(*, frozen: bool) -> Callable[[type], type]:
        """A dataclass whose methods are made at its first use: 0.02 ms at import in place of 0.25.

        Some 80 requests and reports have such a class, and a command uses few of them.
        """

        def mark(kind: type) -> type:
            fields_later = _LazyFields(kind, frozen)

            def new(kind: type, /, *_: object, **__: object) -> object:
                fields_later.make()
                return object.__new__(kind)

            kind.__dataclass_fields__, kind.__new__ = fields_later, new
            return kind

        return mark


class _LazyFields:
    """Stands for the fields of a dataclass until their first use."""

    _making = Lock()  # many threads may read answers

    def __init__(self, kind: type[Any], frozen: bool) -> None:
        self._kind, self._frozen, self._made = kind, frozen, False

    def make(self) -> None:
        """Make the methods, once."""
        if not self._made:
            with self._making:
                if not self._made:
                    dataclass(frozen=self._frozen)(self._kind)
                    self._made = True

    def __get__(self, instance: object, kind: type[Any]) -> Any:
        self.make()
        return vars(self._kind)["__dataclass_fields__"]


@dataclass(frozen=True)
class AtMost:
    """A bound on the characters of a text, or on the items of a list or mapping."""

    number: int

    def check(self, value: Any) -> None:
        """ValueError for a longer value."""
        if len(value) > self.number:
            raise ValueError(f"expected at most {self.number}, got {len(value)}")


class OnlyValid:
    """Marks a list whose malformed items are left out, so that none of them hides the others."""


@dataclass(frozen=True)
class Between:
    """The least and the greatest number, both allowed."""

    least: float
    greatest: float

    def check(self, value: Any) -> None:
        """ValueError for a number outside."""
        if not self.least <= value <= self.greatest:
            raise ValueError(f"expected {self.least} to {self.greatest}, got {_short.repr(value)}")


@dataclass(frozen=True)
class Like:
    """A regular expression that the whole text matches."""

    pattern: str

    def check(self, value: Any) -> None:
        """ValueError for a text that does not match."""
        if not re.fullmatch(self.pattern, value):
            raise ValueError(f"expected {self.pattern}, got {_short.repr(value)}")


@dataclass(frozen=True)
class Parsed:
    """A function that raises ValueError for a text which it cannot read, such as `ipaddress.ip_address`."""

    by: Callable[[str], object]

    def check(self, value: Any) -> None:
        """Raise the function's ValueError."""
        self.by(value)


def from_json(kind: Any, value: Any) -> Any:
    """The value as `kind`: a dataclass, a tuple or mapping, a path, a literal, or a plain type.

    Raises one of MALFORMED for anything else. A field with a default may be missing; unknown ones are
    ignored. A tuple is written as a list, a NamedTuple too.
    """
    return _decoder(kind)(value)


@cache
def _decoder(kind: Any) -> _Decoder:  # noqa: PLR0911  # one line for each kind of type
    """The function that decodes one type; made once."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        bounds = [bound for bound in args[1:] if bound is not OnlyValid]
        decode = _valid_items(args[0]) if OnlyValid in args[1:] else _decoder(args[0])
        return _bounded(decode, bounds)
    if origin in {Union, types.UnionType}:
        return _optional(kind, args)
    if origin is Literal:
        return _literal(args)
    if origin is tuple:
        return _tuple(args)
    if origin is Mapping:
        return _mapping(*args)
    if isinstance(kind, type) and is_dataclass(kind):
        return _dataclass(kind)
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named_tuple(kind)
    if kind is Path:
        return lambda value: Path(_plain(str)(value))
    return _plain(kind)


def _plain(kind: Any) -> _Decoder:
    """A type as it is; True is no number, an integer is a float, and no float is infinite."""

    def decode(value: Any) -> Any:
        if kind is float and type(value) in {int, float} and math.isfinite(value):
            return float(value)
        if kind is float or not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise TypeError(f"expected {getattr(kind, '__name__', kind)}, got {_short.repr(value)}")
        return value

    return decode


def _bounded(decode: _Decoder, bounds: Sequence[Any]) -> _Decoder:
    def decode_bounded(value: Any) -> Any:
        if isinstance(value, (list, dict)):
            for bound in bounds:
                if isinstance(bound, AtMost):
                    bound.check(value)  # before its items are looked at
        decoded = decode(value)
        for bound in bounds:
            bound.check(decoded)
        return decoded

    return decode_bounded


def _optional(kind: Any, args: tuple[Any, ...]) -> _Decoder:
    inner = [arg for arg in args if arg is not types.NoneType]
    if len(inner) != 1:
        raise NotImplementedError(f"{kind}: only a type or None")
    decode = _decoder(inner[0])
    return lambda value: None if value is None else decode(value)


def _literal(allowed: tuple[Any, ...]) -> _Decoder:
    def decode(value: Any) -> Any:
        if value not in allowed:
            raise ValueError(f"expected one of {allowed}, got {_short.repr(value)}")
        return value

    return decode


def _tuple(args: tuple[Any, ...]) -> _Decoder:
    if len(args) == 2 and args[1] is Ellipsis:
        item = _decoder(args[0])
        return lambda value: tuple(_at(index, item, element) for index, element in enumerate(_list(value)))
    items = tuple(map(_decoder, args))

    def decode(value: Any) -> Any:
        if len(_list(value)) != len(items):
            raise ValueError(f"expected {len(items)} values, got {len(value)}")
        pairs = enumerate(zip(items, value, strict=True))
        return tuple(_at(index, item, element) for index, (item, element) in pairs)

    return decode


def _valid_items(kind: Any) -> _Decoder:
    item = _decoder(get_args(kind)[0])

    def decode(value: Any) -> Any:
        decoded = []
        for element in _list(value):
            with suppress(*MALFORMED):
                decoded.append(item(element))
        return tuple(decoded)

    return decode


def _mapping(key: Any, item: Any) -> _Decoder:
    keys, items = _decoder(key), _decoder(item)

    def decode(value: Any) -> Any:
        pairs = _plain(dict)(value).items()
        return {_at("key", keys, name): _at(_short.repr(name), items, element) for name, element in pairs}

    return decode


def _dataclass(kind: type[Any]) -> _Decoder:
    hints = get_type_hints(kind, include_extras=True)
    decoders = {field.name: _decoder(hints[field.name]) for field in fields(kind)}
    needed = {
        field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING
    }

    def decode(value: Any) -> Any:
        items = _plain(dict)(value)
        if missing := sorted(needed - items.keys()):
            raise ValueError(f"no {missing[0]}")
        return kind(
            **{name: _at(name, decoder, items[name]) for name, decoder in decoders.items() if name in items}
        )

    return decode


def _named_tuple(kind: Any) -> _Decoder:
    hints = get_type_hints(kind, include_extras=True)
    decoders = [(name, _decoder(hints[name])) for name in kind._fields]

    def decode(value: Any) -> Any:
        if len(_list(value)) != len(decoders):
            raise ValueError(f"expected {len(decoders)} values, got {len(value)}")
        return kind(
            *(_at(name, decoder, item) for (name, decoder), item in zip(decoders, value, strict=True))
        )

    return decode


def _list(value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"expected a list, got {_short.repr(value)}")
    return value


def _at(position: object, decode: _Decoder, value: Any) -> Any:
    """Decode a part; its error begins with the position."""
    try:
        return decode(value)
    except MALFORMED as error:
        raise ValueError(f"{position}: {error}") from None
