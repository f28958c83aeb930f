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
import json
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from .. import interrupts, waits
from ..common.os_errors import explain
from ..console.progress import Progress
from ..console.terminal import harmless_lines
from ..errors import MusterError, UsageError
from .removed import REMOVED_VALUES

T = TypeVar("T")
Takes = Literal["", "positional", "program", "rest"]
"""Which arguments without a flag are the value of a flag.

positional: one argument, or all of them if the flag may be repeated.
program: the arguments after `--` or after the last positional one: a program and its arguments.
rest: the arguments after `--`.
"""
MOST = 999_999_999
"""The largest number that an option takes, if its declaration gives no smaller one."""
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
class Flag:
    """A flag of a command: its help, and which values are valid.

    A blank value is most often an unset variable of the user's shell. With the default instead, the command
    would use more hosts, or run another program, than the user asked for. So a blank value is an error,
    unless it has a meaning.
    """

    help: str
    metavar: str = ""
    """The name of its value in the help: FILE, SECONDS."""
    also: Sequence[str] = ()
    """Other spellings."""
    takes: Takes = ""
    ends_options: str = ""
    """A spelling after whose value a program's arguments begin, like -m of Python."""
    required: str = ""
    """The question to the user if it is missing."""
    alone: str = ""
    """Its value if it stands alone."""
    values: str = r"-.*"
    """The form of any other value of a flag that may stand alone."""
    least: int | None = None
    most: int = MOST
    choices: Sequence[str] = ()
    blank: str = ""
    """The meaning of an empty value, if it has one."""
    replaces: Sequence[str] = ()
    """The fields whose defaults in a project's file do not count beside it: those that it excludes."""
    of_project: bool = False
    """Whether a project's file sets it for every command that has it, and not only for a launch."""
    name: str = ""
    field: str = ""
    default: Any = None

    @property
    def kind(self) -> type:
        """bool, int, str, or tuple for a flag that may be repeated."""
        return type(self.default)

    @property
    def is_path(self) -> bool:
        """Whether its value is a path of this machine."""
        return self.metavar in {"FILE", "FOLDER", "SCRIPT"}

    def accepted(self, named: str, value: object) -> Any:
        """The value that a file or a program gives the flag, as a command line would.

        `UsageError` for a wrong type, and for a value that no command line may have.
        """
        if self.kind is tuple and isinstance(value, str):
            value = [value]
        if value is True and self.alone:
            value = self.alone
        each = list(value) if isinstance(value, (list, tuple)) else [value]
        is_list = self.kind is tuple and isinstance(value, (list, tuple))
        if not (is_list and all(isinstance(one, str) for one in each)) and type(value) is not self.kind:
            needed = _WRITTEN[self.kind]
            raise UsageError(f"{named} needs {needed}, got {json.dumps(value, default=repr)}")
        if self.kind is not bool:
            for one in each:
                if mistake := self.mistake(named, str(one)):
                    raise UsageError(mistake)
        return tuple(each) if is_list else value

    def mistake(self, named: str, value: str) -> str:
        """The mistake in a value of the flag, which the user wrote as `named`; empty for a valid value."""
        if self.kind is int:
            return self._mistake_in_number(named, value)
        if not value.strip() and not self.blank:
            return f"{named} is empty; give it a value, or leave it out"
        if instead := REMOVED_VALUES.get(f"{self.name} {value}"):
            return f"{named} {value} was removed: {instead}"
        if self.choices and value not in self.choices:
            return f"{named} {value}: must be one of {', '.join(self.choices)}"
        return ""

    def _mistake_in_number(self, named: str, value: str) -> str:
        if not re.fullmatch(r"-?[0-9]+", value):
            return f"{named} needs a whole number, got {value!r}"
        number, least = float(value), self.least or 0  # int() refuses a number of thousands of digits
        if number < least:
            return f"{named} {value}: write {least} or more"
        return f"{named} {value}: write {self.most} or less" if number > self.most else ""


_WRITTEN = {bool: "true or false", int: "a whole number", str: "a text", tuple: "a list of texts"}


def flag(default: T, text: str, metavar: str = "", **more: Any) -> T:
    """Declare a field as a flag; `more`: see `Flag`. A flag whose value is a tuple may be repeated."""
    declared = Flag(text, metavar, **more)
    if type(default) is int and declared.least is None:
        raise TypeError(f"declare the least value of: {text}")
    made: T = dataclasses.field(default=default, metadata={"flag": declared})
    return made


@dataclass(frozen=True)
class Command:
    """A command of Muster. Its subclass is a dataclass with a flag for each field; each has a default."""

    interrupted: ClassVar[str] = "interrupted"
    """The message after Ctrl-C."""
    hints: ClassVar[Mapping[str, str]] = {}
    """Hints for options that only other programs have."""
    groups: ClassVar[Mapping[str, str]] = {}
    """Titles in the help, with the fields below each; other fields come first."""
    done_by: ClassVar[str] = ""
    """The module that executes the command, if its help and completion shall not load that."""
    sources: tuple[Source, ...] = dataclasses.field(default=(), kw_only=True)
    """The place of each value, if a file of the project has given any. It is no flag."""

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
        fields = [_named(each) for each in dataclasses.fields(kind) if "flag" in each.metadata]
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
        execute(self.kind(**others, **{self.flags[name].field: value for name, value in values.items()}))

    def arguments_of(self, command: Command) -> list[str]:
        """The arguments that make a command, without those for default values."""
        options, program, rest = list[str](), list[str](), list[str]()
        for each in self.flags.values():
            value = getattr(command, each.field)
            if value == each.default:
                continue
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
        titled = {
            title: [by_field.pop(name) for name in names.split() if name in by_field]
            for title, names in self.kind.groups.items()
        }
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


def _named(field: dataclasses.Field[Any]) -> Flag:
    """The flag of a field. Messages name a positional argument by its flag."""
    declared: Flag = field.metadata["flag"]
    return dataclasses.replace(
        declared,
        metavar=field.name.upper() if declared.takes == "positional" else declared.metavar,
        name=f"--{field.name.replace('_', '-')}",
        field=field.name,
        default=field.default,
    )


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
    except BrokenPipeError:  # `| head`: deploy/cli/program.py
        raise
    except OSError as error:  # an error of this machine: errors of hosts arrive as a MusterError
        raise Exit(harmless_lines(f"here: {explain(error)}"), 1) from None
    except KeyboardInterrupt as stop:
        if (status := interrupts.decided()) is not None:
            raise Exit(code=status) from None
        if isinstance(stop, interrupts.ConnectingInterrupt):
            interrupted = "interrupted while connecting to the hosts"
        raise Exit(interrupted, 128 + (stop.args or (2,))[0]) from None
