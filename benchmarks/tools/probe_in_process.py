"""Measures cells in this process: a rank of MPI cannot have children that are ranks too.

So a cell that hangs ends the probe, with a message that names the cell. A refusal is the same on all ranks,
and the next cell is not affected.
"""

from __future__ import annotations

import sys
import threading

from muster.deploy.features.bench.programs.outcomes import BROKEN, together
from muster.train.job.failure import end_job
from muster.train.job.group import Job

from .probe_cells import Cell, Measured, measure

PATIENCE = 20.0  # seconds for a cell; one that works takes milliseconds


def measure_inside(group: Job, cells: list[Cell]) -> list[Measured]:
    """Measure `cells` under the group's backend, up to one that leaves the ranks out of step."""
    done: list[Measured] = []
    for cell in cells:
        watchdog = threading.Timer(PATIENCE, _give_up, (group, cell))
        watchdog.daemon = True
        watchdog.start()
        outcome = measure(cell, group.rank, group.world_size, group.ranks.local_rank)
        done.append(Measured(cell, *together(group.all_gather(outcome, tuple[str, str]))))
        watchdog.cancel()
        if done[-1].outcome == BROKEN:
            break
    return done


def _give_up(group: Job, cell: Cell) -> None:
    sys.stderr.write(
        f"error: rank {group.rank}: {cell.operation} of {cell.dtype} on {cell.device} hangs under "
        f"{group.backend}, and a rank cannot leave MPI; the cells after it were not measured\n"
    )
    end_job(1)
