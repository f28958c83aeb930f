"""`muster stacks` and `muster why`: where the ranks of a running job are, and why it hangs or is slow."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass

from ...cli.command import Exit
from ...cli.running_job import exit_if_silent, no_rank, running
from ...cli.shared import EXCLUDE, INCLUDE, JSON, RunningJobOptions, write_json
from ...core.errors import UnfitError
from ...core.plan.flags import flag
from ...core.text.terminal import harmless_lines
from .diagnosis import gather_stacks
from .gather import gather, with_missing
from .hang_verdict import explain
from .kernel import kernel_lines, kernel_messages
from .messages import late_of, stall_of
from .stragglers import lines


@dataclass(frozen=True)
class Stacks(RunningJobOptions):
    """Show where in its program every rank is, with equal ranks together."""

    include: str = flag("", INCLUDE, "HOSTS")
    exclude: str = flag("", EXCLUDE, "HOSTS")

    def run(self) -> None:
        """Read the stacks of all ranks, and print them."""
        with running(self, (self.include, self.exclude)) as (state, channels, silent):
            gathered = gather_stacks(state.job, channels)
        sys.stdout.write(harmless_lines(str(gathered)))
        exit_if_silent(silent)
        if gathered.problems:
            raise Exit(code=UnfitError.exit_status)
        if not gathered.frames and not gathered.problems:
            raise Exit(no_rank(state), 1)


@dataclass(frozen=True)
class Why(RunningJobOptions):
    """Explain a hang or a slow job: which ranks wait in what, and for whom.

    It names the collective with its size and line, the rank that is late to it, and the likely cause. With
    --no-record, or without torch.distributed, it has only the stacks and processes of the ranks. Ends with 1
    if the job hangs, and with 3 if a host does not answer.
    """

    json: bool = flag(False, JSON)

    def run(self) -> None:
        """Gather the records of all ranks, and print the verdict."""
        with running(self) as (state, channels, unasked):
            name = state.job
            ranks, problems = gather(name, channels)
            silent = {**unasked, **problems}
            if not ranks and not silent:
                raise Exit(no_rank(state), UnfitError.exit_status)
            ranks = with_missing(ranks, state.hosts_by_rank, silent)
            verdict = explain(ranks, stalled=stall_of(state.recorded) is not None)
            right = not verdict.hang and verdict.kind != "different"
            late = late_of(state.recorded) if right else []
            kernel, unread = kernel_messages(channels, state.started) if verdict.hang else ([], {})
            silent |= {host: channel.lost.reason for host, channel in channels.items() if channel.lost}
        if self.json:
            fields = {
                **verdict.as_json(),
                "late": [straggler.as_json() for straggler in late],
                "kernel": [asdict(line) for line in kernel],
                "kernel_unread": [{"host": host, "why": why} for host, why in unread.items()],
                "silent": silent,
            }
            write_json({"job": name, **fields})
        else:
            slow = "".join(f"{line}\n" for line in lines(late, time.time()))
            of_kernels = "".join(f"    kernel: {line}\n" for line in kernel_lines(kernel))
            sys.stdout.write(harmless_lines(slow + str(verdict) + of_kernels))
        exit_if_silent(silent)
        if verdict.hang:
            raise Exit(code=1)
