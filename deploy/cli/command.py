"""Declares a command: a function whose parameters are flags, and what its command line takes besides them."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

# For every command that takes the option.
COMMON_ALIASES = {"-H": "--hosts", "--hostfile": "--hosts"}
MOST = 999_999_999
"""The largest number that an option takes, if its declaration gives no smaller one."""


class Exit(Exception):  # the end of a command, which may have succeeded
    """Ends a command: with a text on stderr, and with the exit status `code`."""

    def __init__(self, text: str = "", code: int | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.code = code if code is not None else 1 if text else 0


@dataclasses.dataclass(frozen=True)
class Values:
    """Which values of a flag are valid. It is part of the declaration of the flag."""

    least: int = 0
    most: int = MOST
    blank: str = ""
    """The meaning of an empty value. A flag without one refuses blank values.

    A blank value is most often an unset variable of the user's shell. The default in its place would launch
    on more hosts, or run another program, than the user asked for.
    """

    def mistake(self, named: str, value: str, kind: type) -> str:
        """What is wrong with the value of a flag that the user calls `named`; empty if it is valid."""
        if kind is int:
            return self._mistake_in_number(named, value)
        if not value.strip() and not self.blank:
            return f"{named} is empty; give it a value, or leave it out"
        return ""

    def _mistake_in_number(self, named: str, value: str) -> str:
        if not re.fullmatch(r"-?[0-9]+", value):
            return f"{named} needs a whole number, got {value!r}"
        number = float(value)  # int() refuses a number of thousands of digits
        if number < self.least:
            return f"{named} {value}: write {self.least} or more"
        return f"{named} {value}: write {self.most} or less" if number > self.most else ""


class Command:
    """A function of this package with its flags, the words that it takes without a flag, and its help."""

    def __init__(
        self,
        body: Callable[..., None],
        *,
        options: type[Any] | None = None,
        words: Sequence[str] = (),
        rest: str = "",
        rest_name: str = "",
        rest_after_words: bool = False,
        ends_options: Sequence[str] = (),
        spellings: Mapping[str, str] | None = None,
        hints: Mapping[str, str] | None = None,
        alone: Mapping[str, str] | None = None,
        values: Mapping[str, Values] | None = None,
        help: Mapping[str, str] | None = None,  # noqa: A002  # the word of the declarations
        iterable: Iterable[str] = (),
    ) -> None:
        if options:
            body, help, iterable, values = _gathered(body, options)  # noqa: A001
        self.body = body
        self.text = inspect.getdoc(body) or ""
        self.help = {f"--{name.replace('_', '-')}": text for name, text in (help or {}).items()}
        self.words = tuple(words)
        self.rest = rest
        self.rest_name = rest_name or rest.upper()
        self.rest_after_words = rest_after_words
        self.ends_options = frozenset(ends_options)
        self.hints = dict(hints or {})
        self.alone = dict(alone or {})
        self.iterable = frozenset(iterable)
        self.defaults = {
            f"--{name.replace('_', '-')}": [] if name in self.iterable else parameter.default
            for name, parameter in inspect.signature(body).parameters.items()
        }
        self.flags = {flag: type(default) for flag, default in self.defaults.items()}
        """bool, int, str or list for each flag."""
        self._values = {f"--{name}": valid for name, valid in (values or {}).items()}
        numbers = {flag for flag, kind in self.flags.items() if kind is int}
        if undeclared := numbers - self._values.keys():
            raise TypeError(f"{body.__name__}: declare the least value of {min(undeclared)}")
        known = {short: flag for short, flag in COMMON_ALIASES.items() if flag in self.flags}
        self.spellings = {**known, **(spellings or {})}

    def __call__(self, *values: Any, **named: Any) -> None:
        """Run the command. A flag without a value has its default."""
        self.body(*values, **named)

    def run(self, given: Mapping[str, Any]) -> None:
        """Run the command with the values of flags: `{"--np": 4}`."""
        values = {**self.defaults, **given}
        self.body(**{flag[2:].replace("-", "_"): value for flag, value in values.items()})

    def mistake(self, flag: str, value: str, named: str) -> str:
        """What is wrong with the value of a flag that the user calls `named`; empty if it is valid."""
        return self._values.get(flag, Values()).mistake(named, value, self.flags[flag])

    @property
    def usage(self) -> str:
        """What may follow the command's name: `[options] [SCRIPT] [ARGS]`."""
        words = (f"{word.upper()}{' ...' if word in self.iterable else ''}" for word in self.words)
        parts = ["[options]", *(f"[{word}]" for word in words)]
        if self.rest:
            parts.append(f"[{self.rest_name} ...]" if self.rest_after_words else f"[-- {self.rest_name} ...]")
        return " ".join(parts)

    def other_spellings(self, flag: str) -> list[str]:
        """The spellings of a flag besides its own."""
        return [spelling for spelling, known in self.spellings.items() if known == flag]


def flag(default: T, text: str, *, least: int | None = None, blank: str = "") -> T:
    """Declare a field of a dataclass of options: a flag. A flag whose value is a tuple may be repeated.

    `least`: the least value of a number. `blank`: the meaning of an empty value, if it has one.
    """
    valid = Values(blank=blank) if least is None else Values(least)
    metadata = {"help": text} | ({} if least is None and not blank else {"values": valid})
    declared: T = dataclasses.field(default=default, metadata=metadata)
    return declared


def _gathered(
    body: Callable[..., None], options: type[Any]
) -> tuple[Callable[..., None], dict[str, str], list[str], dict[str, Values]]:
    """A function with a parameter for each field of a dataclass, which calls `body` with a value of it.

    Also the help of each flag, the names of those that may be repeated, and the valid values of some.
    """
    fields = dataclasses.fields(options)
    repeated = [field.name for field in fields if isinstance(field.default, tuple)]

    @functools.wraps(body)
    def called(**values: Any) -> None:
        lists = {name: tuple(values.get(name) or ()) for name in repeated}
        body(options(**values | lists))

    flags = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default)
        for field in fields
    ]
    called.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]  # inspect's own name
    declared = {field.name.replace("_", "-"): field.metadata for field in fields}
    values = {name: metadata["values"] for name, metadata in declared.items() if "values" in metadata}
    return called, {name: metadata["help"] for name, metadata in declared.items()}, repeated, values


def command(**options: Any) -> Callable[[Callable[..., None]], Command]:
    """Declare a function as a command. Its parameters become flags; each needs a default.

    options: a dataclass instead, whose fields are the flags; the function gets its value as `options`.
    words: the flags that words without a flag stand for, in this order.
    rest, rest_name: the flag that gets what follows `--`, quoted as for a shell, and its name in the help.
    rest_after_words: whether the rest also begins after the last of `words`, as a program's arguments do.
    ends_options: spellings of flags after whose value the rest begins, like -m of Python.
    values: the valid values of a flag, for each number, and for each flag whose value may be empty.
    alone: flags that may stand without a value, and the value that they have then; a value begins with "-".
    spellings: other spellings of a flag. hints: the answer to a flag that only other launchers have.
    """
    return lambda body: Command(body, **options)
