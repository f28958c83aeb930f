"""The program behind `muster` and `fab`: finds the command, runs it, ends with its status."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import click
from click.shell_completion import CompletionItem, shell_complete

from ..core.errors import UsageError
from ..core.text.terminal import harmless_streams
from ..core.text.text import fitted, nearest, status_of
from .command import Exit
from .command_line import HELP, CommandLine
from .commands import FAMILIES, FIRST_COMMANDS, MODULES, SUMMARIES, load
from .removed import OTHER_NAMES, replacement

COMPLETE = "_COMPLETE_MUSTER"
"""The variable with which a script of `muster completion` asks for candidates."""
LIST, DRY = ("--list", "-l"), "--dry"


class Commands(click.Group):
    """Commands that are imported only when needed: all of them, or those of a family, such as image.

    Loading all modules takes half a second of processor time, so the help of all commands needs none of them.
    """

    def __init__(self, family: str = "") -> None:
        super().__init__(family or "muster", context_settings={"help_option_names": HELP})
        self._before = f"{family}." if family else ""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name.removeprefix(self._before) for name in MODULES if name.startswith(self._before)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = f"{self._before}{cmd_name}"
        if name in MODULES:
            return CommandLine(name.replace(".", " "), load(name))
        is_family = not self._before and any(each.startswith(f"{name}.") for each in MODULES)
        return Commands(name) if is_family else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str, click.Command, list[str]]:
        """The command of a name. `image.build` is `image build`."""
        name, *rest = args
        if not self._before and name in MODULES and "." in name:
            name, rest = name.partition(".")[0], [name.partition(".")[2], *rest]
        if command := self.get_command(ctx, name):
            return name, command, rest
        called = ctx.command_path
        for gone in (name, " ".join(args[:2]), f"{self._before[:-1]} {name}"):
            if instead := replacement(gone):
                raise UsageError(f"{called.split()[0]} {instead}")
        if self._before:
            hint = nearest(name, self.list_commands(ctx)) or self._choice()
            raise UsageError(f"{called} has no command {name}{hint}")
        if name in OTHER_NAMES:
            raise UsageError(f"{called} has no command {name}: `{called} {OTHER_NAMES[name]}")
        first, *apart = name.split()
        if apart and (first in MODULES or Commands(first).list_commands(ctx)):
            raise UsageError(f"{name!r} is one word here; without quotes: {called} {name}")
        if name.endswith(".py"):
            raise UsageError(f"{name} is not a command; to run it on the hosts: {called} launch {name}")
        names = [each.replace(".", " ") for each in MODULES]
        raise UsageError(
            f"{called} has no command {name}{nearest(name, names)}\nall commands: {called} help --all"
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read what stands before a command; without a command the help is shown."""
        if ctx.resilient_parsing:  # for the candidates of a shell
            return click.Command.parse_args(self, ctx, args[args[:1] == ["help"] :])
        if self._before:
            if not args:
                raise UsageError(f"{ctx.command_path}: a command is missing{self._choice()}")
            return click.Command.parse_args(self, ctx, args)
        start = next((index for index, word in enumerate(args) if not word.startswith("-")), len(args))
        before, after = args[:start], args[start:]
        if after[:1] == ["help"]:
            after = after[1:]
            before = [HELP[0], *before]
            if "--all" in after:
                ctx.meta["all"], after = True, []
        for word in before:
            if word not in {*HELP, *LIST, DRY}:
                if not after and (hint := nearest(word, (*HELP, *LIST))):
                    raise UsageError(f"{ctx.command_path} has no option {word}{hint}")
                named = after[0] if after and after[0] in MODULES else "launch"
                raise UsageError(f"{word}: options follow the command: {ctx.command_path} {named} {word} ...")
        if not after or {*LIST} & {*before}:
            return click.Command.parse_args(self, ctx, [HELP[0]])
        if {*HELP} & {*before}:
            after = [*after, HELP[0]]
        elif DRY in before:
            after[1:1] = [DRY]
        return click.Command.parse_args(
            self, ctx, [*after[:1], *(["--dry-run"] if DRY in before else []), *after[1:]]
        )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = dict.fromkeys(name.partition(".")[0] for name in self.list_commands(ctx))
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    def _choice(self) -> str:
        return f"; it has {', '.join(self._full_names())}"

    def _full_names(self) -> list[str]:
        return [name.replace(".", " ") for name in MODULES if name.startswith(self._before)]

    # -- help --

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        called = ctx.command_path
        formatter.write(f"Usage: {called} COMMAND [options]\n")
        if self._before:
            with formatter.indentation():
                formatter.write_paragraph()
                formatter.write_dl([(name, SUMMARIES[name.replace(" ", ".")]) for name in self._full_names()])
            formatter.write(f"\n{called} COMMAND --help explains a command\n")
        elif ctx.meta.get("all"):
            for title, family in FAMILIES.items():
                with formatter.section(title):
                    formatter.write_dl([(name.replace(".", " "), text) for name, text in family.items()])
            formatter.write(f"\n{called} COMMAND --help explains a command; {called} --version\n")
        else:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_dl([(f"{called} {name}", text) for name, text in FIRST_COMMANDS.items()])
            formatter.write(
                f"\n{called} help --all lists all commands, {called} COMMAND --help explains one.\n"
            )


def main(argv: Sequence[str] | None = None, called: str = "muster") -> NoReturn:
    """Run a command line to its end, as `muster` or as `fab` (`called`), and exit with its status.

    A reader that closed the pipe, such as `head`, is no error to report.
    """
    if asked := os.environ.get(COMPLETE):
        sys.exit(shell_complete(Commands(), {}, called, COMPLETE, asked))
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
        ctx = context_of(argv, called)
        ctx.command.invoke(ctx)
    except (Exit, UsageError) as end:
        text, status = (end.text, end.code) if isinstance(end, Exit) else (str(end), end.exit_status)
        if text:
            sys.stderr.write(f"{fitted(text, sys.stderr)}\n")
        return status
    except click.exceptions.Exit as end:  # after a help text
        return end.exit_code
    return 0


def context_of(argv: Sequence[str], called: str = "muster") -> click.Context:
    """Read a command line. `obj` of the command's context has the values of its flags: `{"--np": 4}`.

    `UsageError` for an invalid one, and click's `Exit` after a help text.
    """
    ctx = Commands().make_context(called, [*argv])
    while isinstance(ctx.command, Commands):
        name, command, rest = ctx.command.resolve_command(ctx, ctx.args)
        ctx = command.make_context(name, rest, parent=ctx)
    return ctx
