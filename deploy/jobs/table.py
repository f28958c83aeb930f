"""Jobs as a table for people. Pure, except that it reads the clock and the time zone."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..connect.requests.jobs import JobState
from ..console import text
from ..console.printed import figures_of, seconds_left
from ..console.terminal import harmless
from ..why.stall import stall_text

COLUMNS = ("job", "state", "launcher", "ranks", "started", "duration", "last line")


def table(states: Sequence[JobState]) -> str:
    """A line for each job: its state, and the last line of rank 0 or the reason of its failure."""
    if not states:
        return "no jobs\n"
    return "".join(f"{line}\n" for line in text.table([COLUMNS, *map(_row, states)]))


def details(state: JobState) -> str:
    """The row of a job, and the details that the row leaves out."""
    facts = {
        "stall": _stall(state),
        "hosts": ", ".join(state.hosts),
        "driver": f"process {state.driver.pid} on {state.driver.host}" + ", detached" * state.detached,
        "folder": state.driver_folder,
        "attempt": f"{state.attempt} (restarted)" if state.attempt else "",
        "outcome": "" if state.running else outcome(state),
        "rank 0": state.last_line,
        "left": _left(state),
    }
    lines = [f"{name:<9}{harmless(value)}\n" for name, value in facts.items() if value]
    return table([state]) + "\n" + "".join(lines)


def outcome(state: JobState) -> str:
    """`failed: rank 4 on node3: exit status 1`, `stopped by SIGINT (2)`."""
    if state.state == "stopped":
        return f"stopped by {state.why}"
    return f"{state.state}: {state.why}" if state.why else state.state


def _stall(state: JobState) -> str:
    """`no step for 1 min 36 s: rank 3 on node2 never came to ...` of a running job that makes no progress."""
    return stall_text(time.time() - state.stall.since, state.stall.why) if state.stall else ""


def _left(state: JobState) -> str:
    """`about 12 min 5 s` of a running job that prints its step and the number of steps."""
    if not state.running or state.attempt:  # after a restart, the program may have begun at any step
        return ""
    left = seconds_left(figures_of(state.last_line).done, time.time() - state.started)
    return "" if left is None else f"about {text.duration(left)}"


def _row(state: JobState) -> tuple[str, ...]:
    end = state.ended if state.ended is not None else time.time() if state.running else None
    return (
        state.job,
        state.state,
        state.launcher,
        f"{state.ranks} on {text.count(len(state.hosts), 'host')}",
        time.strftime("%Y-%m-%d %H:%M", time.localtime(state.started)),
        "-" if end is None else text.duration(end - state.started),
        state.why or _stall(state) or state.last_line,
    )
