"""`muster eval`: an expression in the ranks of a running job."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from ...cli.command import Exit
from ...cli.running_job import exit_if_silent, running
from ...cli.shared import JSON, RunningJobOptions, require_rank, write_json
from ...core.connect.channel import Channel
from ...core.connect.fanout import ask_every
from ...core.connect.requests import Request
from ...core.decode import AtMost, Like, lazy_dataclass
from ...core.errors import UsageError
from ...core.hosts.bounds import Text
from ...core.plan.flags import flag
from ...core.text.fold import fold
from ...core.text.terminal import harmless_lines
from ...core.text.text import span


@lazy_dataclass(frozen=True)
class Answer:
    """A rank's answer: the value as text, or an error. `at`: the line of its program."""

    at: Annotated[str, AtMost(1 << 9)] = ""
    value: Text | None = None
    error: Text = ""


@lazy_dataclass(frozen=True)
class Answers:
    """The answer of each rank of a host. `recorded`: whether its ranks have consoles."""

    recorded: bool
    ranks: Annotated[Mapping[Annotated[str, Like(r"\d{1,7}")], Answer], AtMost(1 << 12)]


EVAL = Request("console_eval", Answers, ranks=lambda answer: answer.ranks)


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


ALL = -1
DEFAULT_SECONDS, MOST_SECONDS = 5, 60


@dataclass(frozen=True)
class Eval(RunningJobOptions):
    """Evaluate an expression in every rank, with equal answers together.

    Names are those of your program where each rank is now: of the innermost function, then of its callers.
    The ranks continue meanwhile. A job that was launched with --no-record does not answer. The exit status is
    1 if a rank gave no value, and 3 if a host did not answer.

    muster eval JOB step
    muster eval JOB "model.training, loss.item()"
    """

    expression: str = flag(
        "",
        "an expression of Python, such as step or optimizer.param_groups[0]['lr']",
        takes="positional",
        required="which expression?",
    )
    rank: int = flag(ALL, "this rank only", "RANK", least=0)
    timeout: int = flag(
        DEFAULT_SECONDS,
        f"seconds that a rank may take (default: {DEFAULT_SECONDS}, at most {MOST_SECONDS})",
        "SECONDS",
        least=1,
        most=MOST_SECONDS,
    )
    json: bool = flag(False, JSON)

    def run(self) -> None:
        """Ask the ranks, and print their answers."""
        with running(self) as (state, channels, silent):
            ranks = range(state.ranks) if self.rank == ALL else [require_rank(self.rank, state.ranks)]
            gathered = gather(
                state.job,
                channels,
                state.hosts_by_rank,
                self.expression,
                ranks,
                seconds=self.timeout,
                silent=silent,
            )
        if self.json:
            fields = {"job": state.job, "expression": self.expression, **gathered.as_json()}
            write_json(fields)
        else:
            sys.stdout.write(str(gathered))
        exit_if_silent(gathered.silent)
        if gathered.failed:
            raise Exit(code=1)
