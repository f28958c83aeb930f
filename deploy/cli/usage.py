"""The help texts: of all commands, of one command, and the versions."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence

from .command import Declaration, Flag
from .commands import FAMILIES, SUMMARIES

DISTRIBUTIONS = {"Muster": "muster-cluster", "Fabric": "fabric", "Invoke": "invoke", "Paramiko": "paramiko"}
LEAST_TEXT, BETWEEN = 30, 3  # columns of the text beside the names, and of the gap between them
LONGEST_NAME = 26  # a longer name has its text on the next line
FIRST_COMMANDS = {
    "init": "start a project: hosts.txt, fabfile.py",
    "demo": "train on this machine alone, to try it",
    "check": "are the hosts fit, and if not, what fixes it",
    "launch SCRIPT": "run a program on every host",
    "status": "the jobs, running and over",
    "logs": "what the ranks printed",
    "top": "hosts and ranks, live",
    "why": "why a job hangs or is slow",
    "stop JOB": "end a job on every host",
    "run COMMAND": "run a command on every host",
}
"""The most used commands and their purposes."""


def versions() -> str:
    """The versions of Muster and of the packages below it."""
    return "".join(f"{name} {_version_of(distribution)}\n" for name, distribution in DISTRIBUTIONS.items())


def of_program(called: str) -> str:
    """The most used commands; it fits a terminal of 24 lines."""
    rows = [(f"{called} {name}", text) for name, text in FIRST_COMMANDS.items()]
    return (
        f"Usage: {called} COMMAND [options]\n\n{_columns(rows)}\n"
        f"{called} help --all lists all commands, {called} COMMAND --help explains one.\n"
    )


def of_all(called: str) -> str:
    """Every command with the first line of its help, in the order in which a user needs them."""
    parts = [f"Usage: {called} COMMAND [options]\n"]
    parts += [f"\n{title}:\n{_summaries([*names])}" for title, names in FAMILIES.items()]
    return "".join([*parts, f"\n{called} COMMAND --help explains a command; {called} --version\n"])


def of_family(first: str, called: str) -> str:
    """The commands whose name begins with `first`, such as image."""
    names = [name for name in SUMMARIES if name.startswith(f"{first}.")]
    return (
        f"Usage: {called} {first} COMMAND [options]\n\n{_summaries(names)}\n"
        f"{called} {first} COMMAND --help explains a command\n"
    )


def of_command(name: str, command: Declaration, called: str) -> str:
    """The usage of a command, what it does, and each option with its short spelling."""
    usage = f"Usage: {called} {name.replace('.', ' ')} [options] {command.arguments}".rstrip()
    rows = {
        title: [(value_of(each, short=True), each.help) for each in flags]
        for title, flags in command.groups.items()
    }
    left = _left(row for group in rows.values() for row in group)
    groups = (f"\n{title}:\n{_columns(group, left)}" for title, group in rows.items())
    return "".join([usage, f"\n\n{_wrapped(command.text)}\n", *groups])


def value_of(flag: Flag, *, short: bool = False) -> str:
    """A flag with a name for its value: `--np N`; `-n, --np N` with its short spelling."""
    brief = next((f"{also}, " for also in flag.also if short and len(also) == 2), "")
    return f"{brief}{flag.name}" if flag.kind is bool else f"{brief}{flag.name} {flag.metavar}"


def _version_of(distribution: str) -> str:
    from importlib import metadata  # noqa: PLC0415  # 16 ms, only for --version

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _summaries(names: Sequence[str]) -> str:
    return _columns([(name.replace(".", " "), SUMMARIES[name]) for name in names])


def _left(rows: Iterable[tuple[str, str]]) -> int:
    """The width of the names on the left, with the gap."""
    return min(LONGEST_NAME, max((len(name) for name, _ in rows), default=0)) + BETWEEN


def _wrapped(text: str) -> str:
    """Paragraphs, wrapped to the terminal. Those of commands, which have columns, stay as they are."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(
        each if each.startswith("muster ") else textwrap.fill(each, _width(), break_on_hyphens=False)
        for each in paragraphs
    )


def _width() -> int:
    return min(100, shutil.get_terminal_size().columns) - 1


def _columns(rows: Sequence[tuple[str, str]], left: int = 0) -> str:
    """Two columns: names, and their texts wrapped to the terminal."""
    left = left or _left(rows)
    width = max(LEAST_TEXT, _width() - left - 2)
    lines = []
    for name, text in rows:
        first, *more = textwrap.wrap(text, width, break_on_hyphens=False) or [""]
        if len(name) > left - BETWEEN:
            lines += [f"  {name}", f"  {'':{left}}{first}"]
        else:
            lines.append(f"  {name:{left}}{first}")
        lines += [f"  {'':{left}}{line}" for line in more]
    return "".join(f"{line.rstrip()}\n" for line in lines)
