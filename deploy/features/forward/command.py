"""`muster forward`."""

from __future__ import annotations

import contextlib
import shlex
import socket
import sys
from dataclasses import dataclass

from ...cli.running import exit_if_silent, running
from ...cli.shared import RunningJobOptions, print_note, require_rank
from ...core.errors import MusterError, UsageError
from ...core.plan.flags import flag
from ...core.text.progress import Progress
from ...core.text.terminal import harmless_lines
from .driver import LOOPBACK, Forwarder, Target, can_tell, listen

MOST_PORT = 65535
OPEN_TO_ALL = (
    "note: every user of this machine can connect to this port: Muster can distinguish users only on Linux"
)
LISTENS = "{job}: {here} of this machine is {there}; Ctrl-C ends this, and the job continues\n"


@dataclass(frozen=True)
class Forward(RunningJobOptions):
    """Connect a port of this machine to a port of a rank's host: TensorBoard, Jupyter.

    The program there needs to listen on the host's loopback interface alone, or on a Unix socket: connections
    come over the SSH connection of Muster. The port here accepts connections of this user alone.

    muster forward JOB 6006
    muster forward JOB jupyter.sock --rank 3
    """

    interrupted = "ended; the job continues"

    to: str = flag(
        "",
        "a port of the host, or the path of a Unix socket there (relative to TMPDIR of the ranks)",
        takes="positional",
        required="which port?",
    )
    rank: int = flag(0, "the rank on whose host it is (default: 0)", "RANK", least=0)
    port: str = flag("", "the port here, 0 for any free one (default: that of the host)", "PORT")

    def run(self) -> None:
        """Pass connections on until the job ends, or the user ends the command."""
        there, here = number_of(self.to), number_of(self.port)
        *others, last = self.to.split(":")
        if others and last.isdecimal() and "/" not in self.to:  # as `ssh -L` and kubectl write it
            mine = "".join(f" --port {each}" for each in [*filter(str.isdecimal, others)][:1])
            raise UsageError(
                f"{self.to}: the port of the host stands alone, and --port names the port here: "
                f"muster forward {shlex.quote(self.job or 'JOB')} {last}{mine}"
            )
        if self.to.isdecimal() and not there:
            raise UsageError(f"port {self.to}: write 1 to {MOST_PORT}, or the path of a socket")
        if self.port and here is None:
            raise UsageError(f"--port {self.port}: write 0 to {MOST_PORT}")
        with running(self) as (state, channels, silent):
            host = state.hosts_by_rank[require_rank(self.rank, state.ranks)]
            exit_if_silent({host: silent[host]} if host in silent else {})
            target = Target(state.job, host, there or 0, "" if there else self.to)
            if not can_tell():
                print_note(OPEN_TO_ALL)
            forwarder = Forwarder(channels[host], target, print_note)
            with contextlib.closing(forwarder), listen(there or 0 if here is None else here) as at:
                if forwarder.watch().refused:
                    raise MusterError(f"{target.job} does not run on {target.host}")
                say(LISTENS.format(job=target.job, here=name_of(at), there=target.where))
                forwarder.run(at)
                say(f"{target.job} has ended on {target.host}\n")


def number_of(text: str) -> int | None:
    """A number of a port; None for another text."""
    return int(text) if text.isdecimal() and len(text) <= 5 and int(text) <= MOST_PORT else None


def name_of(listening: socket.socket) -> str:
    """`127.0.0.1:8888`."""
    return f"{LOOPBACK}:{listening.getsockname()[1]}"


def say(text: str) -> None:
    """Print lines, of which a host may have sent a part."""
    Progress.close_all()
    sys.stdout.write(harmless_lines(text))
    sys.stdout.flush()
