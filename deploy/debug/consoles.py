"""Looks into running ranks: an expression on all of them, or a console on one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..connect.channel import Channel
from ..connect.fanout import ask_every
from ..connect.requests.consoles import EVAL, OPEN, SAY, Answer
from ..console.fold import fold
from ..console.terminal import harmless_lines
from ..console.text import span
from ..errors import MusterError, UsageError

# Connecting to the ranks, and what an agent waits beyond the time that a rank has.
GRACE_SECONDS = 20.0
NO_CONSOLE = "no answer: the rank has ended, or has not started"


@dataclass(frozen=True)
class RankAnswers:
    """The answer of each rank, and why a host gave none."""

    answers: Mapping[int, Answer]
    silent: Mapping[str, str]

    @property
    def failed(self) -> bool:
        """Whether a rank has no value."""
        return any(answer.value is None for answer in self.answers.values())

    def __str__(self) -> str:
        lines = []
        for ranks, (text, at) in fold(
            (rank, _shown(answer)) for rank, answer in sorted(self.answers.items())
        ):
            first, *others = harmless_lines(text).split("\n")
            where = f"  [in {harmless_lines(at)}]" if at else ""
            if others:
                lines += [f"{span(ranks)}:", *(f"    {line}" for line in (first, *others))]
            else:
                lines.append(f"{span(ranks)}: {first}{where}")
        return "".join(f"{line}\n" for line in lines)

    def as_json(self) -> dict[str, Any]:
        """Plain values, for programs."""
        ranks = {
            str(rank): {"value": answer.value, "error": answer.error, "at": answer.at}
            for rank, answer in sorted(self.answers.items())
        }
        return {"ranks": ranks, "silent": dict(self.silent)}


def _shown(answer: Answer) -> tuple[str, str]:
    """The text of an answer; with an error, also where the program was: a name may not be known there."""
    return (answer.error, answer.at) if answer.value is None else (answer.value, "")


def gather(  # what is asked of whom
    job: str,
    channels: Mapping[str, Channel],
    places: Mapping[int, str],
    expression: str,
    wanted: Sequence[int],
    *,
    seconds: float,
    silent: Mapping[str, str],
) -> RankAnswers:
    """Ask the hosts of the wanted ranks at once; each rank has so many seconds.

    `silent`: why hosts of the job could not be reached.

    UsageError if the job was launched without `--record`.
    """
    only = wanted[0] if len(wanted) == 1 else None
    wanted_hosts = {places[rank] for rank in wanted}
    asked = ask_every(
        {host: channel for host, channel in channels.items() if host in wanted_hosts},
        EVAL,
        seconds + GRACE_SECONDS,
        lambda host: {"job": job, "host": host, "expression": expression, "seconds": seconds, "only": only},
    )
    require_record(job, [host.recorded for host in asked.results.values()])
    said = {int(rank): answer for host in asked.results.values() for rank, answer in host.ranks.items()}
    found = {
        rank: said.get(rank, Answer(error=NO_CONSOLE)) for rank in wanted if places[rank] in asked.results
    }
    unreached = {host: reason for host, reason in silent.items() if host in wanted_hosts}
    return RankAnswers(found, {**unreached, **{host: error.reason for host, error in asked.errors.items()}})


def require_record(job: str, recorded: list[bool]) -> None:
    """UsageError if no host has the job's recorder: its ranks then have no console."""
    if recorded and not any(recorded):
        raise UsageError(
            f"{job} was launched without --record, so its ranks cannot be asked; "
            "muster stacks and muster why work without it"
        )


OPEN_SECONDS = 20.0
HEAR_SECONDS = 2.0  # an agent answers so often, also while its rank is silent
SAY_SECONDS = 30.0


def open_talk(
    job: str, channels: Mapping[str, Channel], places: Mapping[int, str], rank: int, *, hold: bool
) -> Channel:
    """Begin a talk with a rank; returns the channel to its host, the only one that hears of it.

    `MusterError` if the rank is not running there.
    """
    host = places[rank]
    if host not in channels:
        raise MusterError(f"{job}: rank {rank} is on {host}, which does not answer")
    channel = channels[host]
    opened = channel.ask(OPEN, seconds=OPEN_SECONDS, job=job, host=host, rank=rank, hold=hold)
    require_record(job, [opened.recorded])
    if not opened.here:
        raise MusterError(f"{job}: rank {rank} is not running on {host}")
    return channel


def talk(channel: Channel, write: Callable[[str], object], read: Callable[[str], str]) -> None:
    """Pass on what the rank writes, and each line that it asks for, until one of both sides leaves.

    `read`: takes the prompt and returns the line; EOFError if the person leaves.
    """
    reply: dict[str, Any] = {}
    while True:
        said = channel.ask(SAY, seconds=SAY_SECONDS + HEAR_SECONDS, **reply, hear=HEAR_SECONDS)
        write(said.text)
        if said.over:
            return
        reply = {}
        if said.ask is not None:
            with contextlib.suppress(EOFError):
                reply = {"line": read(said.ask)}
            if not reply:
                return
