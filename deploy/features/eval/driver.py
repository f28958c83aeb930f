"""Evaluates an expression in running ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.connect.channel import Channel
from ...core.connect.fanout import ask_every
from ...core.errors import UsageError
from ...core.text.fold import fold
from ...core.text.terminal import harmless_lines
from ...core.text.text import span
from .messages import EVAL, Answer

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
    if replies.results and not any(host.recorded for host in replies.results.values()):
        raise UsageError(
            f"{job} was launched with --no-record, so its ranks have no console; "
            "muster stacks and muster why work without one"
        )
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
