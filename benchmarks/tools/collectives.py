"""Run every collective operation, check its result, and explain it in a line.

    torchrun --nproc-per-node 3 -m benchmarks.tools.collectives
    mpirun -np 3 python -m benchmarks.tools.collectives --backend mpi
    python -m benchmarks.tools.collectives --spawn 3 --json
    fab launch --hosts hosts.txt --module benchmarks.tools.collectives

It ends with 1 if a result is wrong. An operation that the backend refuses is shown with its message, and is
no failure.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from muster.deploy.features.bench.programs import outcomes
from muster.deploy.features.bench.programs.tool import ToolConfig, run
from muster.train.job.group import Job
from muster.train.reporting.terminal import headline

from . import measure
from .operations import OPERATIONS, Operation, World


@dataclass(frozen=True, slots=True)
class Row:
    """One operation and its outcome; `said` is the backend's message, or the wrong result."""

    operation: Operation
    outcome: str
    said: str


def main() -> None:
    """Run the tool."""
    run("python -m benchmarks.tools.collectives", ToolConfig, show)


def show(group: Job, config: ToolConfig) -> int:
    """Run all operations, and show them on rank 0; returns the exit status."""
    rows = []
    for operation in OPERATIONS:
        world = World(group.rank, group.world_size, group.device, operation.dtype)
        results = group.all_gather(measure.run(operation, world), tuple[str, str])
        rows.append(Row(operation, *outcomes.together(results)))
        if rows[-1].outcome == outcomes.BROKEN:
            break  # some ranks still wait in it: the next operation would mix with it
    if group.rank == 0:
        sys.stdout.write(as_json(group, rows) if config.json else as_table(group, rows))
        sys.stdout.flush()
    return 1 if any(row.outcome in {outcomes.WRONG, outcomes.BROKEN} for row in rows) else 0


def as_table(group: Job, rows: list[Row]) -> str:
    """Return the rows for people: a line each, then the number of each outcome."""
    width = max(len(row.operation.name) for row in rows)
    lines = [headline(group), ""]
    for row in rows:
        lines.append(f"{row.operation.name:<{width}}  {row.outcome:<7}  {row.operation.lesson}")
        if row.said:
            lines.append(f"{'':<{width}}           {group.backend} says: {row.said}")
    outcomes = [row.outcome for row in rows]
    counts = [f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes)]
    return "\n".join([*lines, "", ", ".join(counts)]) + "\n"


def as_json(group: Job, rows: list[Row]) -> str:
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


if __name__ == "__main__":
    main()
