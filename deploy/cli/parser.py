"""Reads a command line: the command, and the value of each flag that the user gave.

    muster launch -n 4 train.py --epochs 3      launch, --np 4, --script train.py, --args '--epochs 3'
    muster logs JOB -f                          logs, --job JOB, --follow
    muster run -- ls -l                         run, --command 'ls -l'

argparse cannot stop at the name of a program whose options may have our names, and its messages do not say
what to write. Words in, values out, and `UsageError` for words that have no meaning. Besides, it only looks
whether a file has the name of an unknown option.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .command import Command

HELP, LIST = ("--help", "-h"), ("--list", "-l")
DRY = "--dry"
"""`muster --dry launch` is `muster launch --dry-run`."""


@dataclass(frozen=True)
class Call:
    """What a user asks for. `command`: its name; empty for `asks` about the program itself."""

    command: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The values of the flags that were given: a text, a number, a list, or True."""
    asks: str = ""
    """`help`, or nothing."""


def parse(words: Sequence[str], commands: Mapping[str, Command], program: str) -> Call:
    """Read the words of a command line, without the program's name.

    program: the name of the program in messages, `muster` or `fab`.
    """
    start = next((index for index, word in enumerate(words) if not word.startswith("-")), len(words))
    before, after = list(words[:start]), list(words[start:])
    for flag in before:
        if flag not in (*HELP, *LIST, DRY):
            named = after[0] if after and after[0] in commands else "launch"
            raise UsageError(f"{flag}: options follow the command: {program} {named} {flag} ...")
    if after[:1] == ["help"]:
        after = [*after[1:], "--help"]
    if not after or after[0] == "--help" or any(flag in LIST for flag in before):
        return Call(asks="help")
    name, rest = _command(after, commands, program)
    early = [flag for flag in before if flag in (*HELP, DRY)]
    return _Line(name, commands[name], program).read([*early, *rest])


def _command(words: list[str], commands: Mapping[str, Command], program: str) -> tuple[str, list[str]]:
    """The command's name, and the words after it. `image build` is the command image.build."""
    first, both = words[0], ".".join(words[:2])
    if first in commands:
        return first, words[1:]
    if both in commands:
        return both, words[2:]
    if family := [name.replace(".", " ") for name in commands if name.startswith(f"{first}.")]:
        raise UsageError(f"{program} {first}: which of {', '.join(family)}?")
    if first.endswith(".py"):
        raise UsageError(f"{first} is no command; to run it on the hosts: {program} launch {first}")
    nearest = _nearest(first, commands)
    raise UsageError(f"{program} has no command {first}{nearest}\nall of them: {program} help")


class _Line:
    """The words of one command, read from left to right."""

    def __init__(self, name: str, command: Command, program: str) -> None:
        self._name, self._command = name, command
        self._called = f"{program} {name.replace('.', ' ')}"
        self._values: dict[str, Any] = {}

    def read(self, words: Sequence[str]) -> Call:
        """The command with the values of its flags."""
        left = list(words)
        while left:
            word = left.pop(0)
            if word == "--":
                self._take_rest(left)
            elif word in HELP:
                return Call(self._name, asks="help")
            elif word.startswith("-"):
                self._take_flag(word, left)
            else:
                self._take_word(word, left)
        return Call(self._name, self._values)

    def _take_word(self, word: str, left: list[str]) -> None:
        """A word without a flag, and the rest if it begins here."""
        command = self._command
        named = {command.spellings.get(spelling) for spelling in command.ends_options} & {*self._values}
        flags = [f"--{name}" for name in command.words]
        free = [
            flag for flag in flags if not named and (flag not in self._values or command.flags[flag] is list)
        ]
        if free:
            self._give(free[0], word, free[0].removeprefix("--").upper())
        elif command.rest_after_words:
            left.insert(0, word)
        else:
            place = f" after {' '.join(command.words).upper()}" if command.words else ""
            raise UsageError(
                f"{self._called}: unexpected argument {word!r}{place}; see {self._called} --help"
            )
        if command.rest_after_words and len(free) < 2:
            self._take_rest(left)

    def _take_flag(self, word: str, left: list[str]) -> None:
        """An option with its value, and the rest if it begins here."""
        written, equals, value = word.partition("=")
        known = self._flag(written) or self._hint(written) or self._is_program(word)
        if not known and self._flag(word[:2]):  # -n4
            written, equals, value = word[:2], "=", word[2:]
        if not (flag := self._flag(written)):
            raise UsageError(self._unknown(written))
        if self._command.flags[flag] is bool:
            if equals:
                raise UsageError(f"{self._called}: {written} takes no value")
            self._values[flag] = True
            return
        if not equals and flag in self._command.alone and self._stands_alone(left):
            equals, value = "=", self._command.alone[flag]
        if not equals:
            if not left or self._flag(left[0]):
                raise UsageError(f"{self._called}: {written} needs a value")
            value = left.pop(0)
        self._give(flag, value, written)
        if written in self._command.ends_options:
            self._take_rest(left)

    def _stands_alone(self, left: Sequence[str]) -> bool:
        """Whether the flag stands alone: the next word is not its value."""
        if not left or left[0] == "--":
            return True
        return bool(self._flag(left[0]) or (left[0].strip() and not left[0].startswith("-")))

    def _flag(self, written: str) -> str | None:
        """The flag that a spelling stands for; None if there is no such flag."""
        is_long = written.startswith("-") and len(written.lstrip("-")) > 1
        plain = f"--{_name(written)}" if is_long else written
        plain = "--dry-run" if plain == DRY else plain
        flag = self._command.spellings.get(plain, plain)
        return flag if flag in self._command.flags else None

    def _is_program(self, word: str) -> bool:
        """Whether a word that looks like an option names a file that the command could run."""
        return self._command.rest_after_words and Path(word).is_file()

    def _hint(self, written: str) -> str:
        """The answer to an option that only other launchers have; empty if there is none."""
        name = _name(written)
        return self._command.hints.get(name if len(name) > 1 else written, "")

    def _give(self, flag: str, value: str, written: str = "") -> None:
        named = written or flag
        if flag in self._values and self._command.flags[flag] is not list:
            more = f'; all in one: {flag}="A B"' if flag == f"--{self._command.rest}" else ""
            raise UsageError(f"{self._called}: {flag} is given twice{more}")
        if value in self._command.flags:
            raise UsageError(f"{self._called}: {named} needs a value, got the option {value}")
        if mistake := self._command.mistake(flag, value, named):
            hint = self._command.hints.get(f"{_name(flag)}={value}", "")
            raise UsageError(f"{self._called}: {mistake}{hint and f'; {hint}'}")
        if (kind := self._command.flags[flag]) is list:
            self._values.setdefault(flag, []).append(value)
        else:
            self._values[flag] = int(value) if kind is int else value

    def _take_rest(self, left: list[str]) -> None:
        """Take the rest as the value of its flag, quoted as for a shell."""
        if not left:
            return
        flag, rest = f"--{self._command.rest}", shlex.join(left)
        if not self._command.rest:
            raise UsageError(f"{self._called} takes nothing after --")
        if flag in self._values:
            raise UsageError(f"{self._called}: {flag} is given, and {rest!r} too; give them in one place")
        self._values[flag] = rest
        left.clear()

    def _unknown(self, flag: str) -> str:
        """The message for an unknown option."""
        message = f"{self._called}: unknown option {flag}"
        if self._is_program(flag):
            return f"{message}; to launch the file of this name: {self._called} ./{flag}"
        if hint := self._hint(flag):
            return f"{message}: {hint}"
        message += _nearest(flag, [*self._command.flags, *self._command.spellings])
        if self._command.rest_after_words:
            name = " ".join(self._command.words).upper() or "COMMAND"
            message += f"\nwhat is for the program follows its name: {self._called} {name} {flag}"
        elif self._command.rest:
            message += f"\nwhat is for {self._command.rest_name} follows --: {self._called} -- {flag}"
        return f"{message}\nall of them: {self._called} --help"


def _name(written: str) -> str:
    """The name of a long option, which mpirun writes with one dash, and torchrun with `_`."""
    return written.lstrip("-").replace("_", "-")


def _nearest(word: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(word, known, n=1, cutoff=0.7)
    return f"; did you mean {matches[0]}?" if matches else ""
