"""`muster eval` and `muster debug`: look into the ranks of a running job."""

from __future__ import annotations

import contextlib
import sys
from json import dumps

from ..console.terminal import harmless, harmless_lines
from ..debug.answers import gather
from ..debug.talk import open_talk, talk
from ..errors import UsageError
from .command import Exit, Values, command
from .running import exit_if_silent, running
from .shared import HELP, JOB_HOSTS, RUNNING_JOB, RUNS, THE_JOB, explained, require_rank

_HELP = {
    "hosts": JOB_HOSTS,
    "python": HELP["python"],
    "job": THE_JOB,
    "runs": RUNS,
}
ALL = -1
DEFAULT_SECONDS, MOST_SECONDS = 5, 60
BESIDE = "{job}: a console beside rank {rank}, which goes on; help lists commands, Ctrl-D leaves\n"
HELD = (
    "{job}: pdb holds rank {rank}: the other ranks wait for it, and a collective whose time-out passes "
    "fails the job\nquit, or Ctrl-D, lets it go on\n"
)


@command(
    help={
        **_HELP,
        "expression": "an expression of Python, such as step or optimizer.param_groups[0]['lr']",
        "rank": "this rank only",
        "timeout": f"seconds that a rank may take (default: {DEFAULT_SECONDS}, at most {MOST_SECONDS})",
        "json": "print JSON for programs",
    },
    values={"rank": Values(0), "timeout": Values(1, MOST_SECONDS)},
    words=("job", "expression"),
)
def eval(  # noqa: A001, PLR0917  # a flag for each parameter
    job: str = "",
    expression: str = "",
    rank: int = ALL,
    timeout: int = DEFAULT_SECONDS,
    json: bool = False,
    hosts: str = "",
    runs: str = "runs",
    python: str = "",
) -> None:
    """Evaluate an expression in every rank of a running job, with equal answers together.

    Names are those of your program where each rank is now: of the innermost function, then of its callers.
    The ranks go on meanwhile. The job must have been launched with --record or --stall-timeout. The exit
    status is 1 if a rank gave no value, and 3 if a host gave no answer.

    muster eval JOB step
    muster eval JOB "model.training, loss.item()"
    """
    with explained():
        if not expression:
            raise UsageError("which expression? muster eval JOB EXPRESSION")
        with running(job, hosts, runs, python) as (state, channels, silent):
            wanted = range(state.ranks) if rank == ALL else [require_rank(rank, state.ranks)]
            gathered = gather(
                state.job, channels, state.places, expression, wanted, seconds=timeout, silent=silent
            )
        if json:
            said = {"job": state.job, "expression": expression, **gathered.as_json()}
            sys.stdout.write(dumps(said, indent=2) + "\n")
        else:
            sys.stdout.write(str(gathered))
        exit_if_silent(gathered.silent)
        if gathered.failed:
            raise Exit(code=1)


@command(
    help={
        **_HELP,
        "job": RUNNING_JOB,
        "rank": "the rank",
        "hold": "hold the rank in pdb; the other ranks wait for it",
    },
    values={"rank": Values(0)},
    words=("job",),
)
def debug(  # noqa: PLR0917  # a flag for each parameter
    job: str = "",
    rank: int = 0,
    hold: bool = False,
    hosts: str = "",
    runs: str = "runs",
    python: str = "",
) -> None:
    """Open a console of Python beside one rank of a running job; with --hold, the debugger pdb in it.

    The console has the variables of your program where the rank is now, and the rank goes on meanwhile. The
    job must have been launched with --record or --stall-timeout. Ctrl-D leaves, and the job goes on.
    """
    with (
        explained("left; the job goes on"),
        running(job, hosts, runs, python) as (state, channels, silent),
    ):
        rank = require_rank(rank, state.ranks)
        exit_if_silent({host: reason for host, reason in silent.items() if host == state.places[rank]})
        channel = open_talk(state.job, channels, state.places, rank, hold=hold)
        sys.stdout.write((HELD if hold else BESIDE).format(job=state.job, rank=rank))
        talk(channel, _write, _read)
        sys.stdout.write(f"rank {rank} goes on without you\n")


def _write(text: str) -> None:
    sys.stdout.write(harmless_lines(text))
    sys.stdout.flush()


def _read(prompt: str) -> str:
    """A line of the user; with history and cursor keys on a terminal."""
    prompt = harmless(prompt)
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401, PLC0415  # input() uses it
        return input(prompt)
    _write(prompt)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")
