"""Measuring in this process: a rank of MPI has no children that could be ranks as well.

So a cell that hangs ends the probe; it says which it was. What a backend refuses it refuses on all ranks, and
the next cell is unharmed.
"""

from __future__ import annotations

import sys
import threading

from ..collectives.measure import BROKEN, together
from ..failure import end_job
from ..group import Group
from .cells import Cell, Measured, measure

PATIENCE = 20.0  # seconds for one cell; a working one takes milliseconds


def measure_inside(group: Group, cells: list[Cell]) -> list[Measured]:
    """Measure `cells` under the group's backend, up to one that leaves the ranks out of step."""
    done: list[Measured] = []
    for cell in cells:
        watchdog = threading.Timer(PATIENCE, _give_up, (group, cell))
        watchdog.daemon = True
        watchdog.start()
        own = measure(cell, group.rank, group.world_size, group.ranks.local_rank)
        done.append(Measured(cell, *together(group.all_gather(own))))
        watchdog.cancel()
        if done[-1].outcome == BROKEN:
            break
    return done


def _give_up(group: Group, cell: Cell) -> None:
    sys.stderr.write(
        f"error: rank {group.rank}: {cell.operation} of {cell.dtype} on {cell.device} hangs under "
        f"{group.backend}, and MPI cannot be left alone; nothing after it was measured\n"
    )
    end_job(1)
