"""The help texts: of all commands, of one command, and the versions."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

from .command import Command
from .commands import FAMILIES

DISTRIBUTIONS = {"Muster": "muster-cluster", "Fabric": "fabric", "Invoke": "invoke", "Paramiko": "paramiko"}
LEAST_TEXT, BETWEEN = 30, 3  # columns of the text beside the names, and of the gap between them
LONGEST_NAME = 26  # a longer name has its text in the next line


def versions() -> str:
    """The versions of Muster and of the packages below it."""
    return "".join(f"{name} {_version_of(distribution)}\n" for name, distribution in DISTRIBUTIONS.items())


def of_all(called: str) -> str:
    """Every command with the first line of its help, in the order in which a user needs them."""
    parts = [f"Usage: {called} COMMAND [options]\n"]
    for title, names in FAMILIES.items():
        rows = [(name.replace(".", " "), summary) for name, (_, summary) in names.items()]
        parts.append(f"\n{title}:\n{_columns(rows)}")
    return "".join([*parts, f"\n{called} COMMAND --help explains a command; {called} --version\n"])


def of_command(name: str, command: Command, called: str) -> str:
    """The usage of a command, what it does, and each option with its other spellings."""
    rows = []
    for flag, kind in command.flags.items():
        also = ", ".join(command.other_spellings(flag))
        text = command.help.get(flag, "")
        value = "" if kind is bool else " N" if kind is int else " VALUE"
        rows.append((flag + value, f"{text} (also {also})" if also else text))
    usage = f"Usage: {called} {name.replace('.', ' ')} {command.usage}\n"
    return f"{usage}\n{command.text}\n\nOptions:\n{_columns(rows)}"


def _version_of(distribution: str) -> str:
    """The installed version of a distribution."""
    from importlib import metadata  # noqa: PLC0415  # 20 ms, and only --version needs it

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _columns(rows: Sequence[tuple[str, str]]) -> str:
    """Names on the left and their texts, wrapped to the terminal, on the right."""
    left = min(LONGEST_NAME, max((len(name) for name, _ in rows), default=0)) + BETWEEN
    width = max(LEAST_TEXT, min(100, shutil.get_terminal_size().columns) - left - 3)
    lines = []
    for name, text in rows:
        first, *more = textwrap.wrap(text, width) or [""]
        if len(name) > left - BETWEEN:
            lines += [f"  {name}", f"  {'':{left}}{first}"]
        else:
            lines.append(f"  {name:{left}}{first}")
        lines += [f"  {'':{left}}{line}" for line in more]
    return "".join(f"{line.rstrip()}\n" for line in lines)
