"""`muster eval`: an expression in the ranks of a running job."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from ...cli.command import Exit
from ...cli.running import exit_if_silent, running
from ...cli.shared import JSON, RunningJobOptions, require_rank, write_json
from ...core.plan.flags import flag
from .driver import gather

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
