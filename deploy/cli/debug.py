"""`muster eval` and `muster debug`: look into the ranks of a running job."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass

from ..console.progress import Progress
from ..console.terminal import harmless, harmless_lines
from ..debug.consoles import gather, open_console, run_console
from ..errors import UsageError
from .command import Exit, flag
from .forward import MOST_PORT, serve_editor
from .running import exit_if_silent, running
from .shared import JSON, RunningJobOptions, require_rank, write_json

ALL = -1
DEFAULT_SECONDS, MOST_SECONDS = 5, 60
DAP_PORT = 5678  # debugpy's own
BESIDE = "{job}: a console beside rank {rank}, which continues; help lists commands, Ctrl-D leaves\n"
HELD = (
    "{job}: pdb holds rank {rank}: the other ranks wait for it, and a collective that times out fails the "
    "job\nquit, or Ctrl-D, resumes the rank\n"
)


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


@dataclass(frozen=True)
class Debug(RunningJobOptions):
    """Open a console of Python beside a rank; with --hold pdb in the rank, with --dap your editor.

    The console has the variables of your program where the rank is now, and the rank continues meanwhile.
    A job that was launched with --no-record does not answer. Ctrl-D leaves, and the job continues.

    With --dap an editor attaches to a port of this machine, and the command prints the entry for launch.json
    of Visual Studio Code. It needs debugpy in the environment of the ranks, or here.
    """

    interrupted = "left; the job continues"

    rank: int = flag(0, "the rank (default: 0)", "RANK", least=0)
    hold: bool = flag(False, "hold the rank in pdb; the other ranks wait for it")
    dap: bool = flag(False, "let an editor attach to the rank (Debug Adapter Protocol)")
    port: int = flag(
        DAP_PORT,
        f"with --dap: the port of this machine, 0 for any free one (default: {DAP_PORT})",
        "PORT",
        least=0,
        most=MOST_PORT,
    )

    def run(self) -> None:
        """Connect the terminal to the rank until the user leaves."""
        if self.hold and self.dap:
            raise UsageError("--hold and --dap exclude each other: with --dap the editor holds the rank")
        with running(self) as found:
            if self.dap:
                serve_editor(found, self.rank, self.port, self.runs_folder)
                return
            state, channels, silent = found
            rank = require_rank(self.rank, state.ranks)
            host = state.hosts_by_rank[rank]
            exit_if_silent({host: silent[host]} if host in silent else {})
            channel = open_console(state.job, channels, state.hosts_by_rank, rank, hold=self.hold)
            Progress.close_all()
            sys.stdout.write((HELD if self.hold else BESIDE).format(job=state.job, rank=rank))
            run_console(channel, _write, _read)
            sys.stdout.write(f"rank {rank} continues without you\n")


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
