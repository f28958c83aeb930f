"""Declares a command: a dataclass whose fields are its flags, and whose method `run` executes it.

    @dataclass(frozen=True)
    class Logs(JobOptions):
        follow: bool = flag(False, "also show new output until the job ends", also=("-f",))

        def run(self) -> None: ...

Parser, help, completion, the tasks of `fab` and docs/reference/commands.md are made from it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

from ..core import interrupts, waits
from ..core.errors import MusterError
from ..core.plan.flags import Flag, flags_of
from ..core.text.progress import Progress
from ..core.text.terminal import harmless_lines
from ..core.wire.os_errors import explain

PROFILE = "--profile"
"""The flags about a project's own defaults (project.py), which cannot be defaults themselves."""


class Exit(Exception):  # the end of a command, which may have succeeded
    """Ends a command: with a text on stderr, and with the exit status `code`."""

    def __init__(self, text: str = "", code: int | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.code = code if code is not None else 1 if text else 0


class Source(NamedTuple):
    """A value of a flag, and its place: the command line, or a line of a project's own defaults."""

    flag: str
    value: Any
    place: str


@dataclass(frozen=True)
class Command:
    """A command of Muster. Its subclass is a dataclass with a flag for each field; each has a default."""

    interrupted: ClassVar[str] = "interrupted"
    """The message after Ctrl-C."""
    hints: ClassVar[Mapping[str, str]] = {}
    """Hints for options that only other programs have."""
    groups: ClassVar[Mapping[str, str]] = {}
    """Titles in the help, with the first fields below each; other fields come first."""
    done_by: ClassVar[str] = ""
    """The module that executes the command, if its help and completion shall not load that."""
    sources: tuple[Source, ...] = dataclasses.field(default=(), kw_only=True)
    """The place of each value, if a file of the project has given any. It is no flag."""
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict, kw_only=True, compare=False)
    """What the user has written, by the names of the flags."""

    def run(self) -> None:
        """Execute the command, by default with the function of its name in `done_by`."""
        getattr(import_module(f".{self.done_by}", __package__), type(self).__name__.lower())(self)


class Declaration:
    """The command line of a command: its flags by name, and its arguments without a flag.

    A command's own flags come first, then those that it shares.
    """

    def __init__(self, kind: type[Command]) -> None:
        self.kind = kind
        self.text = inspect.getdoc(kind) or ""
        shared = {name for base in kind.__bases__ for name in getattr(base, "__dataclass_fields__", {})}
        fields = flags_of(kind)
        positional = [each for each in fields if each.takes == "positional"]
        options = sorted(
            (each for each in fields if each not in positional), key=lambda each: each.field in shared
        )
        self.positional = positional
        self.flags = {each.name: each for each in [*positional, *options]}
        self.rest = next((each for each in self.flags.values() if each.takes in {"program", "rest"}), None)
        self.spellings = {also: each.name for each in self.flags.values() for also in each.also}

    def flag(self, spelling: str) -> Flag | None:
        """The flag with this name or other spelling; None for an unknown one."""
        return self.flags.get(self.spellings.get(spelling, spelling))

    def run(self, values: Mapping[str, Any], **others: Any) -> None:
        """Run the command with the values of flags, `{"--np": 4}`; others have their defaults.

        `others`: values of fields that are no flags.
        """
        with exit_on_error(self.kind.interrupted):
            command = self.made(values, **others)
        execute(command)

    def made(self, values: Mapping[str, Any], **others: Any) -> Command:
        """The command with these values; `UsageError` for a text that is wrong."""
        flags = [(self.flags[name], value) for name, value in values.items()]
        return self.kind(given=values, **others, **{each.field: each.parsed(value) for each, value in flags})

    def arguments_of(self, command: Command) -> list[str]:
        """The arguments that make a command, without those for default values."""
        options, program, rest = list[str](), list[str](), list[str]()
        for each in self.flags.values():
            if getattr(command, each.field) == each.default:
                continue
            value = command.given.get(each.name, getattr(command, each.field))
            if each is self.rest:
                rest = shlex.split(value)
            elif each in self.positional:
                program = [value]
            elif each.ends_options:
                program = [each.ends_options, value]
            elif value is True or value == each.alone:
                options.append(each.name)
            else:
                values = value if isinstance(value, tuple) else (value,)
                options += [token for one in values for token in (each.name, str(one))]
        return [*options, *(program or ["--"][: len(rest)]), *rest]

    @property
    def groups(self) -> dict[str, list[Flag]]:
        """The flags by their titles in the help."""
        by_field = {each.field: each for each in self.flags.values()}
        titled = dict[str, list[Flag]]()
        for title, names in self.kind.groups.items():
            grouped = [name for name, each in by_field.items() if each.group == title]
            titled[title] = [by_field.pop(name) for name in (*names.split(), *grouped) if name in by_field]
        groups = {"Options": [*by_field.values()], **titled}
        return {title: flags for title, flags in groups.items() if flags}

    @property
    def takes_program(self) -> bool:
        """Whether the arguments after the last positional one are a program's."""
        return bool(self.rest and self.rest.takes == "program")

    @property
    def arguments(self) -> str:
        """The arguments without a flag, for the usage line: `[SCRIPT] [ARGS ...]`."""
        names = (f"{each.metavar}{' ...' if each.kind is tuple else ''}" for each in self.positional)
        parts = [
            name if each.required else f"[{name}]" for each, name in zip(self.positional, names, strict=True)
        ]
        if self.rest:
            dashes = "" if self.takes_program else "-- "
            named = f"{dashes}{self.rest.metavar} ..."
            parts.append(named if self.rest.required else f"[{named}]")
        return " ".join(parts)


def execute(command: Command) -> None:
    """Run a command; `Exit` for every end that is not a success.

    Meanwhile a line on stderr names the hosts, or the program, that the command waits for. A command calls
    `Progress.close_all` before a job or another program writes to the terminal.
    """
    with exit_on_error(command.interrupted), Progress(partial(waits.line, time.monotonic())):
        command.run()


@contextlib.contextmanager
def exit_on_error(interrupted: str = "interrupted") -> Iterator[None]:
    """Print errors as plain text and exit with their status. SIGTERM, SIGHUP and SIGQUIT act like Ctrl-C.

    A signal after the result of the command is known does not change its status.
    """
    interrupts.begin()
    try:
        yield
    except MusterError as error:
        raise Exit(harmless_lines(str(error)), error.exit_status) from None
    except BrokenPipeError:  # `| head`: cli/dispatch.py
        raise
    except OSError as error:  # an error of this machine: errors of hosts arrive as a MusterError
        raise Exit(harmless_lines(f"here: {explain(error)}"), 1) from None
    except KeyboardInterrupt as stop:
        if (status := interrupts.decided()) is not None:
            raise Exit(code=status) from None
        if isinstance(stop, interrupts.ConnectingInterrupt):
            interrupted = "interrupted while connecting to the hosts"
        raise Exit(interrupted, 128 + (stop.args or (2,))[0]) from None
