"""Declares a command: an Invoke task, and the words that its command line takes besides flags."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from invoke import Context, Task

T = TypeVar("T")

# For every command that takes the option.
COMMON_ALIASES = {"-H": "--hosts", "--hostfile": "--hosts"}


class Command(Task[Any]):
    """An Invoke task whose command line also takes words without a flag, and a rest for another program."""

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
        help: Mapping[str, str] | None = None,  # noqa: A002  # Invoke's name
        iterable: Iterable[str] = (),
    ) -> None:
        if options:
            body, help, iterable = _gathered(body, options)  # noqa: A001
        # Positional arguments of Invoke are required, and take `--help` as a value. Its automatic short
        # flags would make -h mean --hosts.
        super().__init__(
            body, help=dict(help or {}), iterable=tuple(iterable), positional=[], auto_shortflags=False
        )
        self.words = tuple(words)
        self.rest = rest
        self.rest_name = rest_name or rest.upper()
        self.rest_after_words = rest_after_words
        self.ends_options = frozenset(ends_options)
        self.hints = dict(hints or {})
        self.alone = dict(alone or {})
        self.flags = {f"--{name.replace('_', '-')}": kind for name, kind in self._kinds().items()}
        known = {short: flag for short, flag in COMMON_ALIASES.items() if flag in self.flags}
        self.spellings = {**known, **(spellings or {})}

    def _kinds(self) -> dict[str, type]:
        """bool, int, str or list for each parameter.

        Invoke's own contexts are no use: making them removes the help texts from the task (Task.arg_opts).
        """
        parameters = list(inspect.signature(self.body).parameters.values())[1:]
        return {
            parameter.name: list if parameter.name in self.iterable else type(parameter.default)
            for parameter in parameters
        }

    @property
    def usage(self) -> str:
        """What may follow the command's name: `[options] [SCRIPT] [ARGS]`."""
        words = (f"{word.upper()}{' ...' if word in self.iterable else ''}" for word in self.words)
        parts = ["[options]", *(f"[{word}]" for word in words)]
        if self.rest:
            parts.append(f"[{self.rest_name} ...]" if self.rest_after_words else f"[-- {self.rest_name} ...]")
        return " ".join(parts)


def flag(default: T, text: str) -> T:
    """Declare a field of a dataclass of options: a flag. A flag whose value is a tuple may be repeated."""
    declared: T = dataclasses.field(default=default, metadata={"help": text})
    return declared


def _gathered(
    body: Callable[..., None], options: type[Any]
) -> tuple[Callable[..., None], dict[str, str], list[str]]:
    """A function with a parameter for each field of a dataclass, which calls `body` with a value of it.

    Also the help of each flag, and the names of those that may be repeated.
    """
    fields = dataclasses.fields(options)
    repeated = [field.name for field in fields if isinstance(field.default, tuple)]

    @functools.wraps(body)
    def called(context: Context, **values: Any) -> None:
        lists = {name: tuple(values.get(name) or ()) for name in repeated}
        body(context, options(**values | lists))

    first, *_ = inspect.signature(body).parameters.values()
    flags = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None if field.name in repeated else field.default,
        )
        for field in fields
    ]
    called.__signature__ = inspect.Signature([first, *flags])  # type: ignore[attr-defined]  # inspect's own name
    return called, {field.name.replace("_", "-"): field.metadata["help"] for field in fields}, repeated


def command(**options: Any) -> Callable[[Callable[..., None]], Command]:
    """Declare a function as a command. Its parameters become flags; each needs a default.

    options: a dataclass instead, whose fields are the flags; the function gets its value as `options`.
    words: the flags that words without a flag stand for, in this order.
    rest, rest_name: the flag that gets what follows `--`, quoted as for a shell, and its name in the help.
    rest_after_words: whether the rest also begins after the last of `words`, as a program's arguments do.
    ends_options: spellings of flags after whose value the rest begins, like -m of Python.
    alone: flags that may stand without a value, and the value that they have then; a value begins with "-".
    spellings: other spellings of a flag. hints: the answer to a flag that only other launchers have.
    """
    return lambda body: Command(body, **options)
