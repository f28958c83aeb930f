"""How a command is declared: an Invoke task, and the words that its command line takes beside flags."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from invoke import Task

# Of every command that takes the option.
COMMON_ALIASES = {"-H": "--hosts", "--hostfile": "--hosts"}


class Command(Task[Any]):
    """A task of Invoke whose command line also takes words without a flag, and a rest that is not ours."""

    def __init__(
        self,
        body: Callable[..., None],
        *,
        words: Sequence[str] = (),
        rest: str = "",
        rest_name: str = "",
        rest_after_words: bool = False,
        ends_options: Sequence[str] = (),
        spellings: Mapping[str, str] | None = None,
        hints: Mapping[str, str] | None = None,
        help: Mapping[str, str],  # noqa: A002  # Invoke's name
        iterable: Iterable[str] = (),
    ) -> None:
        # Invoke's positional arguments may not be left out, and take `--help` for a value. Its automatic
        # short flags would let -h be --hosts.
        super().__init__(
            body, help=dict(help), iterable=tuple(iterable), positional=[], auto_shortflags=False
        )
        self.words = tuple(words)
        self.rest = rest
        self.rest_name = rest_name or rest.upper()
        self.rest_after_words = rest_after_words
        self.ends_options = frozenset(ends_options)
        self.hints = dict(hints or {})
        self.flags = {f"--{name.replace('_', '-')}": kind for name, kind in self._kinds().items()}
        known = {short: flag for short, flag in COMMON_ALIASES.items() if flag in self.flags}
        self.spellings = {**known, **(spellings or {})}

    def _kinds(self) -> dict[str, type]:
        """bool, int, str or list for each parameter.

        Not from Invoke's own contexts: to make them takes the help texts away from the task (Task.arg_opts).
        """
        parameters = list(inspect.signature(self.body).parameters.values())[1:]
        return {
            parameter.name: list if parameter.name in self.iterable else type(parameter.default)
            for parameter in parameters
        }

    @property
    def usage(self) -> str:
        """What may follow the command's name: `[options] [SCRIPT] [ARGS]`."""
        parts = ["[options]", *(f"[{word.upper()}]" for word in self.words)]
        if self.rest:
            parts.append(f"[{self.rest_name} ...]" if self.rest_after_words else f"[-- {self.rest_name} ...]")
        return " ".join(parts)


def command(**options: Any) -> Callable[[Callable[..., None]], Command]:
    """Declare a function as a command; its parameters, all with a default, become flags.

    words: flags that words without a flag stand for, in this order.
    rest, rest_name: the flag that gets what follows `--`, quoted as for a shell, and how help calls it.
    rest_after_words: whether the rest also begins after the last of `words`, as a program's arguments do.
    ends_options: spellings of flags after whose value the rest begins, as Python's own -m.
    spellings: other spellings of a flag. hints: what to say to a flag of other launchers.
    """
    return lambda body: Command(body, **options)
