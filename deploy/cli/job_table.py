"""Jobs as a table for people. It reads the clock, the time zone and the working folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from ..core.connect.requests import JobState
from ..core.text import text
from ..core.text.columns import cut
from ..core.text.fold import fold, fold_names
from ..core.text.printed import figures_of, seconds_left
from ..core.text.terminal import harmless
from ..core.wire.users import home
from ..features.why.messages import stall_of, stall_text

COLUMNS = ("job", "state", "user", "ranks", "hosts", "duration", "last line")


def table(states: Sequence[JobState], width: int | None = None) -> str:
    """A line for each job: its state, and the last line of rank 0 or the reason of its failure.

    `width`: of the terminal, which cuts the lines; None for none.
    """
    if not states:
        return "no jobs\n"
    lines = text.table([COLUMNS, *(_row(state) for state in states)])
    return "".join(f"{cut(line, width) if width else line}\n" for line in lines)


def details(state: JobState, width: int | None = None) -> str:
    """The row of a job, and the details that the row leaves out."""
    facts = {
        "ending": text.still_saving(state.saving),
        "note": _stall(state),
        "launcher": state.launcher,
        "started": time.strftime("%Y-%m-%d %H:%M", time.localtime(state.started)),
        "hosts": ", ".join(state.hosts),
        "GPUs": _gpus(state),
        "spares": ", ".join(state.spares),
        "driver": f"process {state.driver.pid} on {state.driver.host}" + ", detached" * state.detached,
        "folder": _shown_path(state.driver_folder),
        "left out": "; ".join(f"{each.host}: {each.why}" for each in state.left_out),
        "attempt": f"{state.attempt} (restarted)" if state.attempt else "",
        "outcome": "" if state.running else outcome(state),
        "why": state.cause,
        "rank 0": state.last_line,
        "left": _left(state),
    }
    lines = [f"{name:<9}{harmless(value)}\n" for name, value in facts.items() if value]
    return table([state], width) + "\n" + "".join(lines)


def outcome(state: JobState) -> str:
    """`failed: rank 4 on node3: exit status 1`, `stopped by SIGINT (2)`."""
    if state.state == "stopped":
        return f"stopped by {state.why}"
    return f"{state.state}: {state.why}" if state.why else state.state


def _stall(state: JobState) -> str:
    """`no step for 1 min 36 s: rank 3 has not come to ...` of a running job that makes no progress."""
    stall = stall_of(state.recorded)
    return stall_text(time.time() - stall.since, stall.why) if stall else ""


def _gpus(state: JobState) -> str:
    """`node[1-2]: 0-3; node3: 0,2` of a running job whose GPUs are chosen."""
    chosen = state.gpus.items() if state.running else ()
    return "; ".join(f"{fold_names(hosts)}: {text.ranges(numbers)}" for hosts, numbers in fold(chosen))


def _shown_path(folder: str) -> str:
    """The path of a folder, without that of the working folder or of the home above it."""
    above = {f"{Path.cwd()}/": "", f"{home()}/": "~/"}
    return next(
        (name + folder[len(path) :] for path, name in above.items() if folder.startswith(path)), folder
    )


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
        state.user,
        str(state.ranks),
        str(len(state.hosts)),
        "-" if end is None else text.duration(end - state.started),
        state.why or text.still_saving(state.saving) or _stall(state) or state.last_line,
    )
