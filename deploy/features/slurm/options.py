"""The options of salloc and sbatch in `--slurm`, and those with which a launch cannot work."""

from __future__ import annotations

import argparse
import re
import shlex
from dataclasses import dataclass
from typing import Literal

from ...core.errors import UsageError
from ...core.plan.flags import Options

Program = Literal["salloc", "sbatch"]
_PRINTS = "it only prints a text; use {program} itself for that"
_TEXTS = dict.fromkeys(("-h", "--help", "-V", "--version", "--usage"), _PRINTS)
_QUIET = "Muster reads the number of the job from the messages of salloc; leave it out"
_ARRAY = "each task of the array would write to the same folder; launch a job for each instead"
_WAIT = "--detach returns at once; use muster attach, or leave out --detach"
_REFUSED = {
    "salloc": {
        **{**_TEXTS, "-Q": _QUIET, "--quiet": _QUIET},
        "--no-shell": "the allocation would stay when the launch has ended; leave it out",
    },
    "sbatch": {
        **{**_TEXTS, "-a": _ARRAY, "--array": _ARRAY, "-W": _WAIT, "--wait": _WAIT},
        "--test-only": "Slurm would start no job; use --dry-run, or sbatch itself",
        "--wrap": "the command of the job is the program of the launch",
    },
}
_SIGNAL = re.compile(r"(?:(?P<to>[RB]+):)?(?P<name>\w+)(?:@\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class AllocationOptions(Options):
    """What a request has of Slurm."""

    allocation: str = ""
    """Slurm's number of the allocation that the hosts belong to; empty for hosts of a hosts file."""


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
    for before, word, following in zip(["", *words], words, [*words[1:], ""], strict=False):
        is_value = before.startswith("-") and "=" not in before
        name, equals, value = word.partition("=")
        option = name if name.startswith("--") else word[:2]
        why = _REFUSED[program].get(option, "").format(program=program)
        if option == "--signal":
            why = _why_not_signal(value if equals else following, program)
        elif word == ":" and not is_value:
            why = "heterogeneous jobs are not supported: all hosts of a launch come from one set of options"
        elif word == "--" or not (word.startswith("-") or is_value):
            why = f"no option of {program}; the program comes after --slurm and its one argument"
        if why:
            raise UsageError(f"--slurm {slurm!r}: {word!r}: {why}")
    return words


def partition_of(options: list[str]) -> str:
    """The partition that options of salloc name; empty for the default one, or several."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("-p", "--partition", default="", type=lambda name: "" if "," in name else name)
    try:
        return str(parser.parse_known_args(options)[0].partition)
    except argparse.ArgumentError:  # salloc reports it
        return ""


def _why_not_signal(value: str, program: Program) -> str:
    """Why a launch cannot work with this `--signal`; empty if it can.

    sbatch signals its script, which is the driver; salloc signals all processes of the steps.
    """
    signal = _SIGNAL.fullmatch(value)
    if not signal:  # Slurm reports it
        return ""
    to_batch = "B" in (signal["to"] or "").upper()
    if program == "sbatch":
        why = "Slurm would signal the steps and not the driver, which passes the signal on to the ranks"
        return "" if to_batch else f"{why}; write --signal=B:{value}"
    if to_batch:
        return "only a batch job has a script that gets the signal; leave out B:"
    if signal["name"].upper().removeprefix("SIG") in {"USR1", "USR2", "10", "12"}:
        return ""
    return "Slurm would signal all processes of the launch, which only USR1 and USR2 do not end; use these"
