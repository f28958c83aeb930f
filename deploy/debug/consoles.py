"""Evaluates an expression in running ranks, or opens a console in one."""

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

# For connecting to the ranks, beyond the time-out of a rank.
GRACE_SECONDS = 20.0
NO_CONSOLE = "no answer: the rank has ended, or has not started"


@dataclass(frozen=True)
class RankAnswers:
    """The answer of each rank, and the reason why a host did not answer."""

    answers: Mapping[int, Answer]
    silent: Mapping[str, str]

    @property
    def failed(self) -> bool:
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
    """The text of an answer; for an error also the function, in which a name may be undefined."""
    return (answer.error, answer.at) if answer.value is None else (answer.value, "")


def gather(
    job: str,
    channels: Mapping[str, Channel],
    hosts: Mapping[int, str],
    expression: str,
    wanted: Sequence[int],
    *,
    seconds: float,
    silent: Mapping[str, str],
) -> RankAnswers:
    """Evaluate the expression in the wanted ranks at once; each rank has so many seconds.

    `hosts`: the host of each rank. `silent`: why hosts of the job could not be reached.

    UsageError if the ranks have no console.
    """
    only = wanted[0] if len(wanted) == 1 else None
    wanted_hosts = {hosts[rank] for rank in wanted}
    replies = ask_every(
        {host: channel for host, channel in channels.items() if host in wanted_hosts},
        EVAL,
        seconds + GRACE_SECONDS,
        lambda host: {"job": job, "host": host, "expression": expression, "seconds": seconds, "only": only},
    )
    require_record(job, [host.recorded for host in replies.results.values()])
    received = {int(rank): answer for host in replies.results.values() for rank, answer in host.ranks.items()}
    answers = {
        rank: received.get(rank, Answer(error=NO_CONSOLE))
        for rank in wanted
        if hosts[rank] in replies.results
    }
    unreached = {host: reason for host, reason in silent.items() if host in wanted_hosts}
    return RankAnswers(
        answers, {**unreached, **{host: error.reason for host, error in replies.errors.items()}}
    )


def require_record(job: str, recorded: list[bool]) -> None:
    """UsageError if no host has the job's recorder: its ranks then have no console."""
    if recorded and not any(recorded):
        raise UsageError(
            f"{job} was launched with --no-record, so its ranks have no console; "
            "muster stacks and muster why work without one"
        )


OPEN_SECONDS = 20.0
HEAR_SECONDS = 2.0  # an agent answers in this interval, even if its rank is silent
SAY_SECONDS = 30.0


def open_console(
    job: str, channels: Mapping[str, Channel], hosts: Mapping[int, str], rank: int, *, hold: bool
) -> Channel:
    """Open a console in a rank; returns the channel to its host. `MusterError` if the rank is not running."""
    host = hosts[rank]
    if host not in channels:
        raise MusterError(f"{job}: rank {rank} is on {host}, which does not answer")
    channel = channels[host]
    opened = channel.ask(OPEN, seconds=OPEN_SECONDS, job=job, host=host, rank=rank, hold=hold)
    require_record(job, [opened.recorded])
    if not opened.here:
        raise MusterError(f"{job}: rank {rank} is not running on {host}")
    return channel


def run_console(channel: Channel, write: Callable[[str], object], read: Callable[[str], str]) -> None:
    """Pass on the output of the rank, and each line that it asks for, until either side ends the console.

    `read`: takes the prompt and returns the line; EOFError if the user leaves.
    """
    reply: dict[str, Any] = {}
    while True:
        output = channel.ask(SAY, seconds=SAY_SECONDS + HEAR_SECONDS, **reply, hear=HEAR_SECONDS)
        write(output.text)
        if output.over:
            return
        reply = {}
        if output.ask is not None:
            with contextlib.suppress(EOFError):
                reply = {"line": read(output.ask)}
            if not reply:
                return
