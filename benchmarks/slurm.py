"""Writes the tables of docs/slurm.md beside plain srun and sbatch: `python benchmarks/slurm.py [ROUNDS]`.

It starts its own Slurm cluster of three containers (docker/slurm), and takes it down. First: the time until
the first and the last of six ranks run, with idle nodes. Then each fault of
tests/cluster/slurm_faults.py once.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.cluster.slurm import Slurm, slurm_cluster  # noqa: E402  # from the checkout
from tests.cluster.slurm_faults import FAULTS, PROGRAM, SHAPE, WAYS, Outcome, outcome_of  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

PAGE = ROOT / "docs" / "slurm.md"
BEGIN, END = "<!-- figures: benchmarks/slurm.py -->", "<!-- end of figures -->"
STARTS = "import time; print('rank at', time.time(), flush=True)\n"
LONGEST = 110
PATIENCE = 30.0  # seconds for a command to notice a fault
STARTED = ("started by", "first rank", "last rank", "nodes free again")
BATCH = f"#!/bin/sh\n#SBATCH {' '.join(SHAPE)} --output=plain.log\nsrun --mpi=pmix python3 starts.py\n"


def main(rounds: int) -> None:
    """Measure, and replace the tables of the page."""
    with slurm_cluster("muster-slurm-bench", program=PROGRAM, starts=STARTS) as slurm:
        slurm.run("sh", "-c", f"printf '%s' '{BATCH}' > plain.sh")
        starts = {
            name: [started(slurm, command) for _ in range(rounds)] for name, command in commands().items()
        }
        faults = {
            (name, way): outcome_of(slurm, fault, way, PATIENCE)
            for name, fault in FAULTS.items()
            for way in WAYS
            if way.startswith("muster") or not fault.only_muster
        }
    before, _, rest = PAGE.read_text().partition(BEGIN)
    load = os.getloadavg()[0]
    text = f"{BEGIN}\n\n{tables(starts, faults, rounds, load)}\n{END}"
    PAGE.write_text(before + text + rest.partition(END)[2])


def commands() -> dict[str, tuple[str, ...]]:
    """The ways to start a program, each with its command."""
    muster = ("muster", "launch", "--slurm", " ".join(SHAPE), "--launcher")
    batch = ("muster", "launch", "--slurm", " ".join(SHAPE), "--detach")
    return {
        "srun": ("srun", *SHAPE, "--mpi=pmix", "python3", "starts.py"),
        "sbatch, with srun inside": ("sbatch", "plain.sh"),
        "muster launch, mpirun": (*muster, "mpirun", "starts.py"),
        "muster launch, torchrun": (*muster, "torchrun", "starts.py"),
        "muster launch --detach, mpirun": (*batch, "starts.py"),
    }


def started(slurm: Slurm, command: Sequence[str]) -> tuple[float, float, float]:
    """Seconds until the first and the last rank ran, and until all was over and the nodes were free again."""
    wait_until(slurm.is_idle, "nodes of Slurm that are idle")
    slurm.run("rm", "-rf", "plain.log", "runs")
    began = time.time()
    done = slurm.run(*command)
    if done.returncode:
        raise SystemExit(f"{command}: {done.stdout}{done.stderr}")
    printed = done.stdout
    if "--detach" in command or command[0] == "sbatch":
        wait_until(lambda: not slurm.jobs(), "the end of the batch job")
        printed = slurm.run("sh", "-c", "cat plain.log runs/*/logs/rank-*.out 2>/dev/null").stdout
    else:
        wait_until(lambda: not slurm.jobs(), "the end of Slurm's job")
    over = time.time() - began
    # Muster repeats rank 0's last line below the verdict.
    times = sorted({float(at) - began for at in re.findall(r"rank at (\S+)", printed)})
    if len(times) != 6:
        raise SystemExit(f"{command}: {printed}")
    return times[0], times[-1], over


def tables(
    starts: dict[str, list[tuple[float, float, float]]],
    faults: dict[tuple[str, str], Outcome],
    rounds: int,
    load: float,
) -> str:
    """The text between the marks of the page."""
    medians = {
        name: [f"{statistics.median(column):.1f}" for column in zip(*taken, strict=True)]
        for name, taken in starts.items()
    }
    machine = f"{os.cpu_count()} cores for the three containers, load {load:.0f}"
    titles = {name: FAULTS[name].title for name in FAULTS}
    ends = [[title, *(cell(faults, name, way) for way in WAYS)] for name, title in titles.items()]
    said = [[title, *(words(faults, name, way) for way in WAYS)] for name, title in titles.items()]
    heads = ("fault", *WAYS)
    lines = [
        f"Six ranks on three idle nodes, seconds from the command, medians of {rounds} rounds; {machine}.\n",
        *table(STARTED, ([name, *row] for name, row in medians.items())),
        "\nFaults, each once: seconds until the command ended, its exit status, and what was left 10 s",
        "later on the nodes that can be reached.\n",
        *table(heads, ends),
        "\nThe verdict, or the message of srun:\n",
        *table(heads, said),
    ]
    return "\n".join(lines) + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    return [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]


def cell(faults: dict[tuple[str, str], Outcome], name: str, way: str) -> str:
    """`0.8 s, status 3`, and what was left."""
    outcome = faults.get((name, way))
    if outcome is None:
        return ""
    ended = (
        f"not within {PATIENCE:.0f} s"
        if outcome.seconds is None
        else f"{outcome.seconds:.1f} s, status {outcome.status}"
    )
    return f"{ended}; left: {outcome.left}" if outcome.left else ended


def words(faults: dict[tuple[str, str], Outcome], name: str, way: str) -> str:
    """The first line of what was said."""
    outcome = faults.get((name, way))
    first = outcome.said.partition("\n")[0].removeprefix("FAILED  ") if outcome else ""
    return f"`{first[:LONGEST]}`" if first else ""


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
