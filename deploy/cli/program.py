"""The program behind `muster` and `fab`: reads a command line, runs the command, ends with its status."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from ..console.terminal import harmless_streams
from ..console.text import fitted, status_of
from ..errors import UsageError
from . import usage
from .command import Declaration, Exit, Source
from .commands import commands
from .parser import Call, parse
from .project import mentioned, with_defaults
from .project_file import project_of


def main(argv: Sequence[str] | None = None, called: str = "muster") -> NoReturn:
    """Run a command line to its end, as `muster` or as `fab` (`called`), and exit with its status.

    A reader that closed the pipe, such as `head`, is no error to report.
    """
    try:
        with harmless_streams():
            status = run(sys.argv[1:] if argv is None else argv, called)
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's last flush
        status = 128 + signal.SIGPIPE
    sys.exit(status_of(status))  # a status may come from a record or a host


def run(argv: Sequence[str], called: str = "muster") -> int:
    """Run a command line; returns its exit status. The message of a failure goes to stderr."""
    try:
        _run(argv, called)
    except (Exit, UsageError) as end:
        text, status = (end.text, end.code) if isinstance(end, Exit) else (str(end), end.exit_status)
        if text:
            sys.stderr.write(f"{fitted(text, sys.stderr)}\n")
        return status
    return 0


def _run(argv: Sequence[str], called: str) -> None:
    if argv[:1] == ["--complete"]:  # from the scripts of completion.py
        from .completion import candidates  # noqa: PLC0415  # 5 ms, only for shells

        found = candidates(" ".join(argv[2:]), commands())
        sys.stdout.writelines(f"{candidate}\n" for candidate in found)
        return
    if argv[:1] in (["--version"], ["-V"]):  # loads no command
        sys.stdout.write(usage.versions())
        return
    names = [argument for argument in argv if not argument.startswith("-") and argument != "help"]
    declared = commands(names[0].partition(".")[0]) if names else {}
    call = parse(argv, declared, called, _profiles)
    if call.asks:
        sys.stdout.write(_help(call, declared, called))
        return
    command, sources = declared[call.command], tuple[Source, ...]()
    try:
        values, sources = with_defaults(command, call.values)
        command.run(values, sources=sources)
    except Exit as end:
        places = mentioned(end.text, sources) if end.code == UsageError.exit_status else ()
        raise Exit("\n".join([end.text, *places]), end.code) from None


def _profiles() -> Mapping[str, str]:
    project = project_of()
    return project.profiles if project else {}


def _help(call: Call, declared: Mapping[str, Declaration], called: str) -> str:
    if command := declared.get(call.command):
        return usage.of_command(call.command, command, called)
    if call.command:
        return usage.of_family(call.command, called)
    return usage.of_all(called) if call.asks == "all" else usage.of_program(called)
