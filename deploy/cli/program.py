"""The program behind `muster` and `fab`: Invoke's, with other spellings, plain help and exit status 2."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from invoke import Argument, Collection, Exit, ParseError, Program, Task

from ..console.terminal import harmless_streams
from ..console.text import status_of
from ..errors import UsageError
from .command import Command
from .commands import FAMILIES, collection
from .completion import candidates
from .words import spelled_out

DISTRIBUTION = "muster-cluster"
# Invoke's own options that stay. The others concern its shell commands, which we do not use.
KEPT = {"complete", "debug", "dry", "help", "list", "print-completion-script", "version"}
# Options that Invoke reads itself; they keep their defaults.
HIDDEN = {"list-format", "list-depth", "write-pyc"}


def commands(namespace: Collection | None = None) -> dict[str, Command]:
    """Every command, or those of a collection, by the name on the command line: launch, image.build."""
    group = namespace or collection()
    return {name: task for name in group.task_names if isinstance(task := group[name], Command)}


class Muster(Program):
    """The commands of Muster, as `muster` or as `fab` (`called`)."""

    def __init__(self, called: str = "muster") -> None:
        # normalize_argv replaces the empty collection by the commands that are needed.
        super().__init__(namespace=Collection(), name="Muster", binary=called, binary_names=[called])

    def core_args(self) -> list[Argument]:
        """The options that belong to no single command."""
        return [argument for argument in super().core_args() if argument.name in KEPT | HIDDEN]

    def normalize_argv(self, argv: list[str] | None) -> None:
        """Spell out what the user wrote. A request for completions needs the words as they are."""
        super().normalize_argv(argv)
        first, *words = self.argv
        named = [word for word in words if not word.startswith("-") and word != "help"]
        self.namespace = collection(named[0].partition(".")[0] if named else "")
        if words[:1] not in (["--complete"], ["--print-completion-script"]):
            self.argv = [first, *spelled_out(words, commands(self.namespace), self.binary)]

    def run(self, argv: list[str] | None = None, exit: bool = True) -> None:  # noqa: A002  # Invoke's name
        """Run a command to its end. A reader that closed the pipe, such as `head`, is no error to report.

        A status may be that of a record or a host: here it becomes one that a process can have.
        """
        try:
            with harmless_streams():
                super().run(argv, exit)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's last flush
            sys.exit(128 + signal.SIGPIPE)
        except SystemExit as ended:
            if isinstance(ended.code, int):
                raise SystemExit(status_of(ended.code)) from None
            raise

    def parse_core(self, argv: list[str] | None) -> None:
        """Undo that Invoke makes Python compile every module again at each start."""
        with _own_words():
            super().parse_core(argv)
        sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)

    def parse_tasks(self) -> None:
        """Words that `spelled_out` accepts and Invoke refuses are also mistakes of the user."""
        if self.args.complete.value:
            offered = candidates(self.core.remainder, commands(self.namespace))
            sys.stdout.writelines(f"{word}\n" for word in offered)
            raise Exit
        with _own_words():
            super().parse_tasks()

    def update_config(self, merge: bool = True) -> None:
        """`muster --dry launch` is `muster launch --dry-run`."""
        self.config.load_overrides({"run": {"dry": self.args.dry.value}}, merge=merge)

    def print_version(self) -> None:
        """Print the versions of Muster and of the packages below it."""
        names = {"Muster": DISTRIBUTION, "Fabric": "fabric", "Invoke": "invoke", "Paramiko": "paramiko"}
        for name, distribution in names.items():
            sys.stdout.write(f"{name} {version_of(distribution)}\n")

    def print_help(self) -> None:
        """Print every command with the first line of its help, in the order in which a user needs them."""
        sys.stdout.write(f"Usage: {self.binary} COMMAND [options]\n")
        known = collection()
        for title, names in FAMILIES.items():
            sys.stdout.write(f"\n{title}:\n")
            self.print_columns([(name.replace(".", " "), _first_line(known[name])) for name in names])
        sys.stdout.write(f"{self.binary} COMMAND --help explains a command; {self.binary} --version\n")

    def list_tasks(self) -> None:
        """The same, for fab's `--list`."""
        self.print_help()

    def print_task_help(self, name: str) -> None:
        """Print the help of a command: its usage, what it does, and each option with its other spellings."""
        command = commands(self.namespace)[name]
        others: dict[str, list[str]] = {}
        for short, flag in command.spellings.items():
            others.setdefault(flag, []).append(short)
        rows = []
        for spec, text in self.parser.contexts[name].help_tuples():
            also = ", ".join(others.get(spec.partition("=")[0], ()))
            rows.append((spec, f"{text or ''} (also {also})" if also else text))
        sys.stdout.write(f"Usage: {self.binary} {name.replace('.', ' ')} {command.usage}\n\n")
        sys.stdout.write(f"{inspect.getdoc(command)}\n\nOptions:\n")
        self.print_columns(rows)


def version_of(distribution: str) -> str:
    """The installed version of a distribution."""
    from importlib import metadata  # noqa: PLC0415  # a fifth of the time that a command takes to start

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _first_line(task: Task[Any]) -> str:
    return (inspect.getdoc(task) or "").partition("\n")[0]


@contextlib.contextmanager
def _own_words() -> Iterator[None]:
    """Turn every mistake in a command line into exit status 2."""
    try:
        yield
    except (UsageError, ParseError) as error:
        raise Exit(str(error), UsageError.exit_status) from None


def main() -> None:
    """`muster`."""
    Muster().run()
