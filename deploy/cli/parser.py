"""Reads a command line: the command, and the value of each flag that the user gave.

    muster launch -n 4 train.py --epochs 3      launch, --np 4, --script train.py, --args '--epochs 3'
    muster logs JOB -f                          logs, --job JOB, --follow
    muster run -- ls -l                         run, --command 'ls -l'

argparse cannot stop at the name of a program whose options may have our names, and its messages name no
remedy. The parser is pure, except that it looks whether a file has the name of an unknown option.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..console.text import nearest
from ..errors import UsageError
from .command import PROFILE, Declaration, Flag
from .removed import replacement

HELP, LIST = ("--help", "-h"), ("--list", "-l")
ALL, DRY = "--all", "--dry"
"""`muster --dry launch` is `muster launch --dry-run`."""


@dataclass(frozen=True)
class Call:
    """A parsed command line. `command`: its name; empty for `asks` about the program."""

    command: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The values of the flags on the command line: a text, a number, a tuple, or True."""
    asks: str = ""
    """`help` for the help of the command or family, `all` for that of all commands; else empty."""


def parse(
    argv: Sequence[str],
    commands: Mapping[str, Declaration],
    program: str,
    profiles: Callable[[], Mapping[str, str]] = dict,
) -> Call:
    """Parse a command line without the program's name. `UsageError` for an invalid one.

    `program`: its name in messages, `muster` or `fab`. `profiles`: the place of each profile, by its name.
    """
    start = next((index for index, argument in enumerate(argv) if not argument.startswith("-")), len(argv))
    before, after = list(argv[:start]), list(argv[start:])
    for flag in before:
        if flag not in (*HELP, *LIST, DRY):
            if not after and (hint := nearest(flag, (*HELP, *LIST))):
                raise UsageError(f"{program} has no option {flag}{hint}")
            named = after[0] if after and after[0] in commands else "launch"
            raise UsageError(f"{flag}: options follow the command: {program} {named} {flag} ...")
    if after[:1] == ["help"]:
        after = [*after[1:], "--help"]
    if after[:1] == [ALL]:
        return Call(asks="all")
    if not after or after[0] == "--help" or any(flag in LIST for flag in before):
        return Call(asks="help")
    if after[0] not in commands and {*after[1:2]} & {*HELP} and _family(after[0], commands):
        return Call(after[0], asks="help")
    name, rest = _command(after, commands, program)
    leading = [flag for flag in before if flag in (*HELP, DRY)]
    return _CommandLine(name, commands[name], program, profiles).read([*leading, *rest])


def _command(argv: list[str], commands: Mapping[str, Declaration], program: str) -> tuple[str, list[str]]:
    """The command's name, and the arguments after it. `image build` is the command image.build."""
    first, both = argv[0], ".".join(argv[:2])
    if first in commands:
        return first, argv[1:]
    if both in commands:
        return both, argv[2:]
    if gone := replacement(first) or replacement(" ".join(argv[:2])):
        raise UsageError(f"{program} {gone}")
    if family := _family(first, commands):
        raise UsageError(f"{program} {first}: which of {', '.join(family)}?")
    if first.endswith(".py"):
        raise UsageError(f"{first} is not a command; to run it on the hosts: {program} launch {first}")
    raise UsageError(
        f"{program} has no command {first}{nearest(first, commands)}\nall commands: {program} help --all"
    )


def _family(first: str, commands: Iterable[str]) -> list[str]:
    """The commands whose name begins with `first`, such as image."""
    return [name.replace(".", " ") for name in commands if name.startswith(f"{first}.")]


class _CommandLine:
    """Parses the arguments of one command from left to right."""

    def __init__(
        self, name: str, command: Declaration, program: str, profiles: Callable[[], Mapping[str, str]]
    ) -> None:
        self._name, self._command, self._profiles = name, command, profiles
        self._called = f"{program} {name.replace('.', ' ')}"
        self._values: dict[str, Any] = {}
        self._positional: list[str] = []
        """The flags with a positional argument as their value."""
        self._program_begins = False

    def read(self, arguments: Sequence[str]) -> Call:
        left = list(arguments)
        while left:
            argument = left.pop(0)
            if argument == "--":
                self._take_rest(left)
            elif argument in HELP:
                return Call(self._name, asks="help")
            elif argument.startswith("-"):
                self._take_flag(argument, left)
            else:
                self._take_positional(argument, left)
        self._require_all()
        return Call(self._name, self._values)

    def _take_positional(self, argument: str, left: list[str]) -> None:
        """Take an argument without a flag, and the rest if a program begins with it."""
        command = self._command
        if self._is_profile(argument):
            self._set(command.flags[PROFILE], argument, argument)
            return
        free = [each for each in command.positional if each.name not in self._values or each.kind is tuple]
        if free and not self._program_begins:
            self._set(free[0], argument, free[0].metavar)
            self._positional.append(free[0].name)
        elif command.takes_program:
            left.insert(0, argument)
        else:
            names = " ".join(each.metavar for each in command.positional)
            after = f" after {names}" if names else ""
            raise UsageError(
                f"{self._called}: unexpected argument {argument!r}{after}; see {self._called} --help"
            )
        if command.takes_program and len(free) < 2:
            self._take_rest(left)

    def _is_profile(self, argument: str) -> bool:
        """Whether an argument in the place of a program is a profile. `UsageError` if it is a program too."""
        has_program = self._positional or self._program_begins or PROFILE in self._values
        if has_program or PROFILE not in self._command.flags:
            return False
        profiles, path = self._profiles(), Path(argument)
        is_program = path.is_file() or (path / "__main__.py").is_file()
        if argument in profiles and is_program:
            raise UsageError(
                f"{self._called}: {argument} is a program here, and a profile in {profiles[argument]}; "
                f"write ./{argument} for the program, or {PROFILE} {argument}"
            )
        is_name = not (path.exists() or path.suffix)
        if is_name and argument not in profiles and (hint := nearest(argument, profiles)):
            raise UsageError(f"{self._called}: {argument} is neither a file nor a profile{hint}")
        return argument in profiles

    def _take_flag(self, argument: str, left: list[str]) -> None:
        """Take an option with its value, and the rest if a program begins with it."""
        written, equals, value = argument.partition("=")
        is_known = self._flag(written) or self._hint(written) or self._is_program(argument)
        if not is_known and self._flag(argument[:2]):  # -n4
            written, equals, value = argument[:2], "=", argument[2:]
        if not (flag := self._flag(written)):
            raise UsageError(self._unknown(written))
        if flag.kind is bool:
            if equals and value != "false":  # against true in a project's file
                raise UsageError(f"{self._called}: {written} takes no value")
            self._values[flag.name] = not equals
            return
        if not equals and flag.alone and self._stands_alone(flag, left):
            equals, value = "=", flag.alone
        if not equals:
            if not left or self._flag(left[0]):
                raise UsageError(f"{self._called}: {written} needs a value")
            value = left.pop(0)
        self._set(flag, value, written)
        if flag.ends_options:
            self._program_begins = True
            if written == flag.ends_options:
                self._take_rest(left)

    def _stands_alone(self, flag: Flag, left: Sequence[str]) -> bool:
        """Whether the flag stands alone: the next argument is not its value."""
        if not left or left[0] == "--":
            return True
        value = left[0].strip()
        return bool(self._flag(left[0]) or (value and not re.fullmatch(flag.values, value, re.DOTALL)))

    def _flag(self, written: str) -> Flag | None:
        """The flag with this spelling; None for an unknown one."""
        is_long = written.startswith("-") and len(written.lstrip("-")) > 1
        plain = f"--{_name(written)}" if is_long else written
        plain = "--dry-run" if plain == DRY else plain
        return self._command.flag(plain)

    def _is_program(self, argument: str) -> bool:
        """Whether an argument that looks like an option names a file that the command could run."""
        return self._command.takes_program and Path(argument).is_file()

    def _hint(self, written: str) -> str:
        """The hint for an option that only other launchers have; else empty."""
        name = _name(written)
        return self._command.kind.hints.get(name if len(name) > 1 else written, "")

    def _set(self, flag: Flag, value: str, written: str) -> None:
        """Set or extend the value of a flag; `UsageError` for an invalid value."""
        if flag.name in self._values and flag.kind is not tuple:
            more = f'; all in one: {flag.name}="A B"' if flag is self._command.rest else ""
            raise UsageError(f"{self._called}: {flag.name} is given twice{more}")
        if value in self._command.flags:
            raise UsageError(f"{self._called}: {written} needs a value, got the option {value}")
        if mistake := flag.mistake(written, value):
            hint = self._command.kind.hints.get(f"{_name(flag.name)}={value}", "")
            raise UsageError(f"{self._called}: {mistake}{hint and f'; {hint}'}")
        if flag.kind is tuple:
            self._values[flag.name] = (*self._values.get(flag.name, ()), value)
        else:
            self._values[flag.name] = int(value) if flag.kind is int else value

    def _take_rest(self, left: list[str]) -> None:
        """Take the rest as the value of its flag, quoted as for a shell."""
        if not left:
            return
        if not (flag := self._command.rest):
            raise UsageError(f"{self._called} takes nothing after --")
        rest = shlex.join(left)
        if flag.name in self._values:
            raise UsageError(f"{self._called}: {flag.name} and {rest!r} exclude each other; give one")
        self._values[flag.name] = rest
        left.clear()

    def _require_all(self) -> None:
        """`UsageError` for a missing argument. A single positional argument is the required one."""
        required = (each for each in self._command.flags.values() if each.required)
        missing = [each for each in required if each.name not in self._values]
        if missing and missing[0].takes == "positional" and len(self._positional) == 1:
            self._values[missing.pop(0).name] = self._values.pop(self._positional[0])
        if missing:
            raise UsageError(f"{missing[0].required} {self._called} {self._command.arguments}")

    def _unknown(self, flag: str) -> str:
        if gone := replacement(f"{self._name.replace('.', ' ')} --{_name(flag)}"):
            return f"{self._called.split()[0]} {gone}"
        message = f"{self._called}: unknown option {flag}"
        if self._is_program(flag):
            return f"{message}; to launch the file of this name: {self._called} ./{flag}"
        if hint := self._hint(flag):
            return f"{message}: {hint}"
        message += nearest(flag, [*self._command.flags, *self._command.spellings, *HELP])
        if self._command.takes_program:
            name = " ".join(each.metavar for each in self._command.positional) or "COMMAND"
            message += f"\narguments of the program follow its name: {self._called} {name} {flag}"
        elif self._command.rest:
            message += f"\nan option of {self._command.rest.metavar} follows --: {self._called} -- {flag}"
        return f"{message}\nall options: {self._called} --help"


def _name(written: str) -> str:
    """The name of a long option, which mpirun writes with one dash, and torchrun with `_`."""
    return written.lstrip("-").replace("_", "-")
