"""Run every collective operation, check its answer, and say what it does.

    torchrun --nproc-per-node 3 -m muster.train.collectives
    mpirun -np 3 python -m muster.train.collectives --backend mpi
    python -m muster.train.collectives --spawn 3 --json
    fab launch --hosts hosts.txt --module muster.train.collectives

It ends with 1 if an answer is wrong. What a backend lacks is said in its own words, and is no failure.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from ..group import Group
from ..report import headline
from ..tool import ToolConfig, run
from . import measure
from .operations import OPERATIONS, Operation, World


@dataclass(frozen=True, slots=True)
class Row:
    """One operation, and what came of it."""

    operation: Operation
    outcome: str
    said: str


def main() -> None:
    """Run the tool."""
    run("python -m muster.train.collectives", show)


def show(group: Group, config: ToolConfig) -> int:
    """Run all operations, and show them on rank 0; returns the exit status."""
    rows = []
    for operation in OPERATIONS:
        world = World(group.rank, group.world_size, group.device, operation.dtype)
        results = group.all_gather(measure.run(operation, world))
        rows.append(Row(operation, *measure.together(results)))
        if rows[-1].outcome == measure.BROKEN:
            break  # some ranks wait in it still: the next would mix with it
    if group.rank == 0:
        sys.stdout.write(as_json(group, rows) if config.json else as_table(group, rows))
        sys.stdout.flush()
    return 1 if any(row.outcome in {measure.WRONG, measure.BROKEN} for row in rows) else 0


def as_table(group: Group, rows: list[Row]) -> str:
    """Return the rows for people: a line each, then how many of each outcome."""
    width = max(len(row.operation.name) for row in rows)
    lines = [headline(group), ""]
    for row in rows:
        lines.append(f"{row.operation.name:<{width}}  {row.outcome:<7}  {row.operation.lesson}")
        if row.said:
            lines.append(f"{'':<{width}}           {group.backend} says: {row.said}")
    outcomes = [row.outcome for row in rows]
    counts = [f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes)]
    return "\n".join([*lines, "", ", ".join(counts)]) + "\n"


def as_json(group: Group, rows: list[Row]) -> str:
    """Return the rows for programs."""
    return (
        json.dumps(
            {
                "ranks": group.world_size,
                "hosts": group.host_count,
                "backend": group.backend,
                "launcher": group.ranks.launcher,
                "operations": [
                    {
                        "name": row.operation.name,
                        "outcome": row.outcome,
                        "said": row.said,
                        "lesson": row.operation.lesson,
                    }
                    for row in rows
                ],
            },
            indent=2,
        )
        + "\n"
    )
