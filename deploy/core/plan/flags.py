"""Declares a flag: a field of a dataclass, with its help, and which values are valid.

    @dataclass(frozen=True)
    class PowerOptions(Options):
        power_limit: int = flag(0, "note a host above this power", "WATTS", group="Look at it")

Parser, help, completion, muster.toml, the tasks of `fab`, the keywords of the Python API and the reference
are made from it.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ..errors import UsageError

T = TypeVar("T")
Takes = Literal["", "positional", "program", "rest"]
"""Which arguments without a flag are the value of a flag.

positional: one argument, or all of them if the flag may be repeated.
program: the arguments after `--` or after the last positional one: a program and its arguments.
rest: the arguments after `--`.
"""
MOST = 999_999_999
"""The largest number that an option takes, if its declaration gives no smaller one."""
REMOVED_VALUES: Mapping[str, str] = {
    "--launcher srun": "use mpirun or torchrun, which also start ranks in an allocation",
}
"""Values of flags that are still there, of any command."""


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
    group: str = ""
    """Its title in the help."""
    parse: Callable[[str], Any] | None = None
    """Makes its value from each text; `UsageError` for one that is wrong."""
    secret: bool = False
    """Whether its value is written to no file."""
    name: str = ""
    field: str = ""
    default: Any = None

    @property
    def kind(self) -> type:
        """What the user writes: bool, int, str, or tuple for a flag that may be repeated."""
        return str if self.parse and not isinstance(self.default, tuple) else type(self.default)

    @property
    def is_path(self) -> bool:
        """Whether its value is a path of this machine."""
        return self.metavar in {"FILE", "FOLDER", "SCRIPT"}

    def parsed(self, written: Any) -> Any:
        """The value of the field for what the user has written."""
        if self.parse is None:
            return written
        return tuple(map(self.parse, written)) if self.kind is tuple else self.parse(written)

    def accepted(self, named: str, value: object) -> Any:
        """The value that a file or a program gives the flag, as a command line would.

        `UsageError` for a wrong type, and for a value that no command line may have.
        """
        if self.kind is tuple and isinstance(value, str):
            value = [value]
        if value is True and self.alone:
            value = self.alone
        if type(value) is int and self.parse and self.kind is str:
            value = str(value)
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
    if type(default) is int and declared.least is None and not declared.parse:
        raise TypeError(f"declare the least value of: {text}")
    made: T = dataclasses.field(default=default, metadata={"flag": declared})
    return made


def flags_of(declared: Any) -> list[Flag]:
    """The flags of a dataclass or of an instance. Messages name a positional argument by its flag."""
    fields = (each for each in dataclasses.fields(declared) if "flag" in each.metadata)
    return [
        dataclasses.replace(
            flag,
            metavar=field.name.upper() if flag.takes == "positional" else flag.metavar,
            name=f"--{field.name.replace('_', '-')}",
            field=field.name,
            default=field.default,
        )
        for field in fields
        for flag in [field.metadata["flag"]]
    ]


@dataclass(frozen=True)
class Options:
    """Options of a launch that belong together, as those of a feature: a frozen dataclass of flags.

    They travel with the request, as `LaunchSpec.of(PowerOptions)`. Fields that are no flags travel too.
    """

    @property
    def variables(self) -> Sequence[tuple[str, str]]:
        """Variables of every rank."""
        return ()

    @property
    def recorded(self) -> Mapping[str, object]:
        """Entries of the options in launch.json, by flag."""
        return {}

    def check(self, given: Mapping[str, Any]) -> None:
        """`UsageError` for options that exclude each other, before any host is asked.

        `given`: all options of the launch without default values, by field: `{"max_restarts": 3}`.
        """
