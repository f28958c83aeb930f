"""The command line of one command, as a command of click.

    muster launch -n 4 train.py --epochs 3      --np 4, --script train.py, --args '--epochs 3'
    muster logs JOB -f                          --job JOB, --follow
    muster run -- ls -l                         --command 'ls -l'

Click reads the options. This module adds four things: a positional argument may be given by its flag too,
the arguments of a program follow its name or `--`, an option may stand alone, and an option of another
launcher is answered.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from ..core.errors import UsageError
from ..core.plan.flags import Flag
from ..core.text.text import nearest
from ..core.wire.job_folders import is_job_id
from .command import Declaration, Exit, Source
from .project import mentioned, with_defaults
from .removed import removed_from
from .shared import RUNS_FOLDER

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # generic since click 8.4 only

HELP = ("--help", "-h")
WORDS = "words"


class _Mark(str):
    """A word that is added for click; the user has not written it."""

    __slots__ = ()


class _Joined(str):
    """An option with its value in one word, and the words that the user has written for it."""

    written: Sequence[str]

    def __new__(cls, flag: Flag, value: str, *written: str) -> _Joined:
        joined = super().__new__(cls, f"{flag.name}={value}")
        joined.written = written
        return joined


_DASHES = _Mark("--")
"""Follows a `--`, which click drops."""


class CommandLine(click.Command):
    """Reads the arguments of a command. Then `values` of the context has the flags: `{"--np": 4}`."""

    def __init__(self, name: str, declared: Declaration) -> None:
        self.declared = declared
        gone = {f"--{flag}": f" {text}" for flag, text in removed_from(name).items()}
        hints = {
            option: f": unknown option {option}: {hint}"
            for name, hint in declared.kind.hints.items()
            for option in (name if name.startswith("-") else f"--{name}",)
        }
        super().__init__(
            name,
            params=[
                _Words([WORDS], nargs=-1, type=click.UNPROCESSED),
                *(_Option(flag) for flag in declared.flags.values()),
                *(_Answer(number, *each) for number, each in enumerate({**gone, **hints}.items())),
            ],
            help=re.sub(r"(?m)(?<=\n\n)(?=muster )", "\b\n", declared.text),
            context_settings={
                "help_option_names": HELP,
                "allow_interspersed_args": not declared.takes_program,
                "token_normalize_func": lambda word: word.replace("_", "-"),
            },
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options by click, then give every other argument to its flag."""
        if self.declared.takes_program and not ctx.resilient_parsing:
            _require_no_file(ctx.command_path, args)
        try:
            super().parse_args(ctx, [*self._marked(args)])
        except click.NoSuchOption as error:
            raise UsageError(self._unknown(ctx.command_path, error.option_name)) from None
        except click.BadOptionUsage as error:
            problem = "needs a value" if "requires" in error.message else "takes no value"
            raise UsageError(f"{ctx.command_path}: {error.option_name} {problem}") from None
        if not ctx.resilient_parsing:
            ctx.obj = self._values(ctx, [*ctx.params.pop(WORDS, ())])
        return []

    def _marked(self, args: Sequence[str]) -> Iterator[str]:
        """The arguments, with `--` marked, and with the values of options that may stand alone."""
        left = [*args]
        while left:
            word = left.pop(0)
            spelled = f"--{_name(word)}" if len(_name(word)) > 1 else word
            flag = self.declared.flag(spelled) if word.startswith("-") else None
            if flag and flag.alone and "=" not in word:
                follows = left and not self._stands_alone(flag, left[0])
                yield _Joined(flag, left[0] if follows else flag.alone, word, *left[:1] if follows else ())
                del left[: 1 if follows else 0]
            elif flag and word == flag.ends_options and left:
                yield from (word, left.pop(0), _Mark("--"))
            else:
                yield from (word, _DASHES) if word == "--" else (word,)

    def _stands_alone(self, flag: Flag, following: str) -> bool:
        """Whether this word does not belong to the flag before it."""
        value = following.strip()
        is_other = following == "--" or self.declared.flag(following)
        return bool(is_other or (value and not re.fullmatch(flag.values, value, re.DOTALL)))

    def _values(self, ctx: click.Context, words: list[str]) -> dict[str, Any]:
        """The value of each flag that the user has given."""
        flags, rest, called = self.declared.flags.values(), self.declared.rest, ctx.command_path
        values = dict[str, Any]()
        for flag in flags:
            if ctx.get_parameter_source(flag.field) is ParameterSource.COMMANDLINE:
                value = ctx.params[flag.field]
                if flag.kind not in {bool, tuple} and len(value) > 1:
                    more = f'; all in one: {flag.name}="A B"' if flag is rest else ""
                    raise UsageError(f"{called}: {flag.name} is given twice{more}")
                values[flag.name] = value if flag.kind in {bool, tuple} else value[0]
        has_program = any(flag.ends_options and flag.name in values for flag in flags)
        free = [] if has_program else [flag for flag in self.declared.positional if flag.name not in values]
        placed = list[str]()
        while free and words and words[0] is not _DASHES:
            flag, word = free[0], words.pop(0)
            if mistake := flag.mistake(flag.metavar, word):
                raise UsageError(f"{called}: {mistake}")
            values[flag.name] = (*values.get(flag.name, ()), word) if flag.kind is tuple else word
            placed.append(flag.name)
            del free[: 0 if flag.kind is tuple else 1]
        is_rest = bool(words) and (words[0] is _DASHES or self.declared.takes_program)
        if left := [word for each in words for word in _written(each)]:
            if not is_rest:
                names = " ".join(each.metavar for each in self.declared.positional)
                after = f" after {names}" if names else ""
                raise UsageError(f"{called}: unexpected argument {left[0]!r}{after}; see {called} --help")
            if rest is None:
                raise UsageError(f"{called} takes nothing after --")
            if rest.name in values:
                raise UsageError(
                    f"{called}: {rest.name} and {shlex.join(left)!r} exclude each other; give one"
                )
            if words[0] is _DASHES and self.declared.positional and not free:
                left.insert(0, _DASHES)  # dropped by click: it marks the arguments of a program
            values[rest.name] = shlex.join(left)
        self._require_all(called, values, placed)
        return values

    def _require_all(self, called: str, values: dict[str, Any], placed: Sequence[str]) -> None:
        """`UsageError` for a missing argument. A single positional argument is the required one."""
        missing = [flag for flag in self.declared.flags.values() if flag.required and flag.name not in values]
        if missing and missing[0].takes == "positional" and len(placed) == 1:
            values[missing.pop(0).name] = values.pop(placed[0])
        if missing:
            raise UsageError(f"{missing[0].required} {called} {self.declared.arguments}")

    def _unknown(self, called: str, option: str) -> str:
        known = [*self.declared.flags, *self.declared.spellings, *HELP]
        message = f"{called}: unknown option {option}{nearest(option, known)}"
        if self.declared.takes_program:
            name = " ".join(each.metavar for each in self.declared.positional) or "COMMAND"
            message += f"\narguments of the program follow its name: {called} {name} {option}"
        elif self.declared.rest:
            message += f"\nan option of {self.declared.rest.metavar} follows --: {called} -- {option}"
        return f"{message}\nall options: {called} --help"

    def invoke(self, ctx: click.Context) -> None:
        """Run the command. Its message about a flag names the place in the project's file that set it."""
        sources = tuple[Source, ...]()
        try:
            values, sources = with_defaults(self.declared, ctx.obj)
            self.declared.run(values, sources=sources)
        except Exit as end:
            places = mentioned(end.text, sources) if end.code == UsageError.exit_status else ()
            raise Exit("\n".join([end.text, *places]), end.code) from None

    # -- help --

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, f"[options] {self.declared.arguments}".rstrip())

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, flags in self.declared.groups.items():
            with formatter.section(title):
                formatter.write_dl([(value_of(each, short=True), each.help) for each in flags])


class _Option(click.Option):
    """A flag. Its long spellings may have one dash, as those of mpirun."""

    def __init__(self, flag: Flag) -> None:
        self.flag = flag
        spellings = [flag.name, *flag.also]
        spellings += [each[1:] for each in spellings if each.startswith("--")]
        if flag.kind is bool:
            spellings[0] = f"{flag.name}/{opposite(flag.name)}"
        more: dict[str, Any] = {} if flag.kind is bool else {"multiple": True, "type": _Value(flag)}
        super().__init__([flag.field, *spellings], help=flag.help, **more)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return _candidates(self.flag.choices, incomplete)


class _Value(_ParamType):
    """The values of a flag."""

    name = "value"

    def __init__(self, flag: Flag) -> None:
        self._flag = flag

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        flag, called = self._flag, ctx.command_path if ctx else ""
        declared = ctx.command.declared if ctx and isinstance(ctx.command, CommandLine) else None
        if declared and declared.flag(value.partition("=")[0]) and value.startswith("--"):
            raise UsageError(f"{called}: {flag.name} needs a value, got the option {value}")
        if mistake := flag.mistake(flag.name, value):
            hint = declared.kind.hints.get(f"{_name(flag.name)}={value}", "") if declared else ""
            raise UsageError(f"{called}: {mistake}{hint and f'; {hint}'}")
        return int(value) if flag.kind is int else value


class _Answer(click.Option):
    """An option that only other launchers, or earlier releases, have: its use is a mistake with an answer."""

    def __init__(self, number: int, option: str, answer: str) -> None:
        self._answer = answer
        spellings = {option, option[1:] if option.startswith("--") else option}
        super().__init__(
            [f"answer{number}", *spellings], hidden=True, is_eager=True, is_flag=False, flag_value=""
        )

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        if ctx.get_parameter_source(self.name or "") is ParameterSource.COMMANDLINE:
            raise UsageError(f"{ctx.command_path}{self._answer}")


class _Words(click.Argument):
    """All arguments that are no options."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        declared = ctx.command.declared if isinstance(ctx.command, CommandLine) else None
        names = [choice for each in (declared.positional if declared else ()) for choice in each.choices]
        if declared and "--job" in declared.flags:  # any other name may be a command for a shell
            folders = (path.name for path in Path(RUNS_FOLDER).glob("*/"))
            names = sorted(filter(is_job_id, folders), reverse=True)  # the newest first
        return _candidates(names, incomplete)


def _candidates(names: Sequence[str], incomplete: str) -> list[CompletionItem]:
    """The names that begin so; files without any."""
    found = [CompletionItem(each) for each in names if each.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def _require_no_file(called: str, args: Sequence[str]) -> None:
    """`UsageError` for a program whose name begins with a dash, such as -x.py: it reads as an option."""
    for word in takewhile(lambda word: word.startswith("-"), args):
        if Path(word).is_file():
            raise UsageError(
                f"{called}: unknown option {word}; to launch the file of this name: {called} ./{word}"
            )


def value_of(flag: Flag, *, short: bool = False) -> str:
    """A flag with a name for its value: `--np N`; `-n, --np N` with its short spelling."""
    brief = next((f"{also}, " for also in flag.also if short and len(also) == 2), "")
    return f"{brief}{flag.name}" if flag.kind is bool else f"{brief}{flag.name} {flag.metavar}"


def opposite(name: str) -> str:
    """`--no-detach` for `--detach`; `--record` for `--no-record`."""
    return f"--{name.removeprefix('--no-')}" if name.startswith("--no-") else f"--no-{name[2:]}"


def _name(written: str) -> str:
    return written.partition("=")[0].lstrip("-").replace("_", "-")


def _written(word: str) -> Sequence[str]:
    """The words that the user has written for a word."""
    return () if isinstance(word, _Mark) else word.written if isinstance(word, _Joined) else (word,)
