"""The options of salloc and sbatch in `--slurm`, and those with which a launch cannot work.

An option may be shortened, as getopt_long(3) allows it. The options are those of salloc(1) and sbatch(1).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Literal

from ...core.errors import UsageError

Program = Literal["salloc", "sbatch"]
# Options whose value, if they take one at all, follows a `=`. Every other one may have it in the next word.
_ALONE = frozenset(
    (
        *("bell", "consolidate-segments", "contiguous", "exclusive", "external", "get-user-env", "help"),
        *("hold", "ignore-pbs", "immediate", "kill-command", "nice", "no-bell", "no-kill", "no-requeue"),
        *("no-shell", "oom-kill-step", "overcommit", "oversubscribe", "parsable", "propagate", "quiet"),
        *("reboot", "requeue", "resv-ports", "spread-job", "spread-segments", "stepmgr", "test-only"),
        *("usage", "use-min-nodes", "verbose", "version", "wait", "x11"),
    )
)
_SHORT = {
    **{"h": "help", "H": "hold", "I": "immediate", "K": "kill-command", "k": "no-kill", "O": "overcommit"},
    **{"s": "oversubscribe", "Q": "quiet", "v": "verbose", "V": "version", "W": "wait", "a": "array"},
}
_PRINTS = "it only prints a text; use {program} itself for that"
_REFUSED = {
    "salloc": {
        **dict.fromkeys(("help", "usage", "version"), _PRINTS),
        "no-shell": "the allocation would stay when the launch has ended; leave it out",
        "quiet": "Muster reads the number of the job from the messages of salloc; leave it out",
    },
    "sbatch": {
        **dict.fromkeys(("help", "usage", "version"), _PRINTS),
        "array": "each task of the array would write to the same folder; launch a job for each instead",
        "test-only": "Slurm would start no job; use --dry-run, or sbatch itself",
        "wait": "--detach returns at once; use muster attach, or leave out --detach",
        "wrap": "the command of the job is the program of the launch",
    },
}
_PARTS = "heterogeneous jobs are not supported: all hosts of a launch come from one set of options"
_SIGNAL = re.compile(r"(?:(?P<to>[RB]+):)?(?P<name>\w+)(?:@\d+)?", re.IGNORECASE)
_FOR_RANKS = {"USR1", "USR2", "10", "12"}


def options_of(slurm: str, program: Program = "salloc") -> list[str]:
    """The options in the value of `--slurm`; `UsageError` for anything else, and for what cannot work."""
    try:
        words = shlex.split(slurm)
    except ValueError as error:
        raise UsageError(f"--slurm {slurm!r}: {error}") from None
    if not words or not words[0].startswith("-"):
        raise UsageError(
            f'--slurm {slurm!r}: give options of {program}, quoted as one argument: --slurm "-N 2 -t 60"'
        )
    for name, value in _parsed(slurm, words, program):
        if why := _why_not(name, value, program):
            option = f"--{name}={value}" if value else f"--{name}"
            raise UsageError(f"--slurm {slurm!r}: {option}: {why}")
    return words


def _parsed(slurm: str, words: Sequence[str], program: Program) -> Iterator[tuple[str, str]]:
    """The options with their values; `UsageError` for a word that belongs to none."""
    rest = iter(words)
    for word in rest:
        if word == ":":
            raise UsageError(f"--slurm {slurm!r}: {_PARTS}")
        if word == "--" or not word.startswith("-"):
            raise UsageError(
                f"--slurm {slurm!r}: {word!r} is no option of {program}; "
                "the program of the launch comes after --slurm and its one argument"
            )
        if not word.startswith("--"):
            yield from _short(word, rest)
            continue
        name, equals, value = word[2:].partition("=")
        name = _full(name, program)
        yield name, value if equals or name in _ALONE else next(rest, "")


def _short(word: str, rest: Iterator[str]) -> Iterator[tuple[str, str]]:
    """The options of a word such as `-N2` or `-HN 2`."""
    for place, letter in enumerate(word[1:], start=2):
        name, value = _SHORT.get(letter, letter), word[place:]
        if name not in _ALONE:
            yield name, value or next(rest, "")
            return
        yield name, ""
        if letter in "IKk":  # their optional value is the rest of the word
            return


def _full(name: str, program: Program) -> str:
    """The name of an option that may be shortened."""
    known = {*_ALONE, *_REFUSED[program], "signal"}
    fitting = [full for full in sorted(known) if full.startswith(name)]
    return fitting[0] if len(fitting) == 1 and len(name) > 2 else name


def _why_not(name: str, value: str, program: Program) -> str:
    """Why a launch cannot work with this option; empty if it can."""
    signal = _SIGNAL.fullmatch(value) if name == "signal" else None
    if signal:
        to_batch = "B" in (signal["to"] or "").upper()
        return _why_not_signal(signal["name"].upper(), to_batch=to_batch, value=value, program=program)
    return _REFUSED[program].get(name, "").format(program=program)


def _why_not_signal(signal: str, *, to_batch: bool, value: str, program: Program) -> str:
    """sbatch signals its script, which is the driver; salloc signals all processes of the steps."""
    if program == "sbatch":
        why = "Slurm would signal the steps and not the driver, which passes the signal on to the ranks"
        return "" if to_batch else f"{why}; write --signal=B:{value}"
    if to_batch:
        return "only a batch job has a script that gets the signal; leave out B:"
    if signal.removeprefix("SIG") in _FOR_RANKS:
        return ""
    return "Slurm would signal all processes of the launch, which only USR1 and USR2 do not end; use these"
