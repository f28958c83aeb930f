"""Faults under Slurm: what is done to a job of six ranks, by two ways to start it, and what follows.

The ranks sleep on three nodes. Rank 4 is on slurm3, and does the deed itself, or something is done to it.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from tests.cluster.slurm import NODES, Slurm
from tests.waiting import read_until, wait_until

STRIKE = "/tmp/muster-strike"
PROGRAM = f"""
import os, signal, sys, time
rank = os.environ.get("RANK") or os.environ["SLURM_PROCID"]
print("ready", rank, flush=True)
deadline = time.monotonic() + 600
while time.monotonic() < deadline and not (rank == "4" and os.path.exists("{STRIKE}")):
    time.sleep(0.02)
if sys.argv[1] == "raise":
    raise ValueError("boom")
if sys.argv[1] == "exit":
    sys.exit(3)
os.kill(os.getpid(), {{"kill": signal.SIGKILL, "stop": signal.SIGSTOP}}[sys.argv[1]])
"""
SHAPE = ("-N3", "--ntasks-per-node=2", "-t5")
MUSTER = ("muster", "launch", "--slurm", " ".join(SHAPE), "--start-timeout", "120")
WAYS: Mapping[str, tuple[str, ...]] = {
    "muster, mpirun": (*MUSTER, "--launcher", "mpirun"),
    "plain srun": ("srun", *SHAPE, "--mpi=pmix", "--kill-on-bad-exit=1", "python3"),
}
"""The same program, as a user would start it."""
DRIVER = "[d]eploy.cli.entry|^srun -N3"
"""What the command of the user is on the login node."""


@dataclass(frozen=True)
class Fault:
    """A row of the table."""

    title: str
    strike: Callable[[Slurm], object]
    within: float
    """Seconds until Muster's verdict, and until nothing is left."""
    status: int
    says: str
    """What Muster's verdict has to contain, as a regular expression."""
    deed: str = "kill"
    words: tuple[str, ...] = ()
    alive: tuple[str, ...] = NODES
    only_muster: bool = False
    mend: Callable[[Slurm], object] = lambda slurm: None


@dataclass(frozen=True)
class Outcome:
    """What followed: seconds until the command ended (None: it did not), its status, and its words."""

    seconds: float | None
    status: int | None
    said: str
    left: str
    """What was still there when the command had ended and 10 s had passed; empty for nothing."""


def do_deed(slurm: Slurm) -> None:
    slurm.run("touch", STRIKE, node="slurm3", folder="/")


def kill_on(node: str, pattern: str, slurm: Slurm) -> None:
    """Kill (SIGKILL) the newest process of a node, of its own container, whose command matches."""
    slurm.run("sh", "-c", f"kill -9 $(pgrep -n -f '{pattern}')", node=node, folder="/")


def signal_command(number: int, slurm: Slurm) -> None:
    slurm.run("sh", "-c", f"kill -{number} $(pgrep -o -f '{DRIVER}')", folder="/")


def cancel(slurm: Slurm) -> None:
    slurm.run("scancel", *slurm.jobs())


def restart(slurm: Slurm) -> None:
    slurm.compose("up", "--detach")


def thaw(slurm: Slurm) -> None:
    slurm.compose("unpause", "slurm3")


FAULTS: Mapping[str, Fault] = {
    "raise": Fault("a rank raises", do_deed, 5, 1, r"rank 4 on slurm3: exit status 1", deed="raise"),
    "exit": Fault("a rank exits with 3", do_deed, 5, 3, r"rank 4 on slurm3: exit status 3", deed="exit"),
    "kill": Fault("a rank is killed (SIGKILL)", do_deed, 5, 137, r"rank 4 on slurm3: SIGKILL \(9\)"),
    "agent": Fault(
        *("the agent of a node is killed", partial(kill_on, "slurm3", "^python3 -c .muster agent"), 10, 3),
        says="slurm3: ",
        only_muster=True,
    ),
    "sigint": Fault("Ctrl-C", partial(signal_command, signal.SIGINT), 5, 130, r"STOPPED by SIGINT \(2\)"),
    "sigterm": Fault(
        "the command gets SIGTERM", partial(signal_command, signal.SIGTERM), 5, 143, "STOPPED by SIGTERM"
    ),
    "sigkill": Fault("the command is killed", partial(signal_command, signal.SIGKILL), 10, 137, ""),
    "scancel": Fault("scancel", cancel, 10, 143, r"STOPPED by scancel \(Slurm's job \d+\)"),
    "power": Fault(
        "a node loses its power",
        lambda slurm: slurm.compose("kill", "slurm3"),
        20,
        3,
        "slurm3: ",
        alive=NODES[:2],
        mend=restart,
    ),
    "frozen": Fault(
        "a node freezes",
        lambda slurm: slurm.compose("pause", "slurm3"),
        30,
        3,
        "slurm3: ",
        alive=NODES[:2],
        mend=thaw,
    ),
    "stopped": Fault(
        "a rank is stopped (SIGSTOP); muster with --stall-timeout 5",
        do_deed,
        20,
        3,
        "rank 4 on slurm3: stopped",
        deed="stop",
        words=("--stall-timeout", "5"),
    ),
}


def outcome_of(slurm: Slurm, fault: Fault, way: str, patience: float) -> Outcome:
    """Start the program in this way, do the fault to it, see what follows, and leave an idle cluster.

    `patience`: seconds after which a command that has not noticed is ended.
    """
    is_muster = way.startswith("muster")
    command = [*WAYS[way], *(fault.words if is_muster else ()), "program.py", fault.deed]
    try:
        with slurm.start(*command) as process:
            lines = read_until(process, "ready", 6)
            began = time.monotonic()
            fault.strike(slurm)
            outcome = _followed(slurm, fault, process, lines, began, patience)
    finally:
        _clear(slurm, fault)
    return outcome


def _followed(
    slurm: Slurm,
    fault: Fault,
    process: subprocess.Popen[str],
    lines: list[str],
    began: float,
    patience: float,
) -> Outcome:
    try:
        rest, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        left = _names(slurm.left(fault.alive))
        signal_command(signal.SIGKILL, slurm)
        process.kill()
        rest, _ = process.communicate()
        return Outcome(None, None, _last(lines, rest), left)
    seconds = time.monotonic() - began
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not slurm.left(fault.alive), "the end of all processes", patience=10.0)
    return Outcome(seconds, process.returncode, _last(lines, rest), _names(slurm.left(fault.alive)))


def _clear(slurm: Slurm, fault: Fault) -> None:
    """Undo the fault, and give all hosts back."""
    fault.mend(slurm)
    for job in slurm.jobs():
        slurm.run("scancel", job)
    for node in NODES:
        slurm.run("sh", "-c", f"rm -f {STRIKE}; pkill -9 -f program.py; true", node=node, folder="/")
    wait_until(slurm.is_idle, "nodes of Slurm that are idle")


def _last(lines: list[str], rest: str) -> str:
    """The verdict of Muster, or what Slurm says."""
    text = "".join(lines) + rest
    if found := re.search(r"^(?:FAILED|STOPPED) .*(?:\n +\| .*)*", text, re.MULTILINE):
        return found[0]
    said = [line for line in text.splitlines() if "error" in line or "STEP" in line or "srun:" in line]
    return "\n".join(said[:3])


def _names(left: str) -> str:
    """`3 program.py, 1 prted`: the processes that are left, by what they are."""
    kinds = ("program.py", "muster agent", "prted")
    counts = {kind: sum(kind in line for line in left.splitlines()) for kind in kinds}
    return ", ".join(f"{number} {kind}" for kind, number in counts.items() if number)
