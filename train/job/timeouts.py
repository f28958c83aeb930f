"""How long a rank waits in a collective: long until the first step is done, then perhaps shorter.

Before the first step some ranks import, read data or compile for minutes while others wait, and nothing is
wrong. After it, all ranks come within a step's time, and a rank that does not come is frozen or gone.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed import distributed_c10d as c10d


class StepTimeout:
    """The time-out of collectives after the first step; None leaves the one of before."""

    def __init__(self, timeout: timedelta | None = None) -> None:
        self._next = timeout

    def first_step_done(self, barrier: Callable[[], None]) -> None:
        """Set it, the first time, once `barrier` has shown that every rank has done the step."""
        if self._next is not None:
            timeout, self._next = self._next, None
            barrier()  # else a rank that compiles its optimizer could be waited for with the shorter one
            set_timeouts(timeout)


def set_timeouts(timeout: timedelta) -> None:
    """Set the time-out of the collectives to come, of every process group of this process.

    torch has no public function for that; torchtitan uses the same private one, which knows Gloo and NCCL.
    Muster's MPI backend has a method of its own.
    """
    groups: list[Any] = list(c10d._world.pg_map)
    for group in groups:
        if hasattr(group, "_set_default_timeout"):
            group._set_default_timeout(timeout)
        else:
            c10d._set_pg_timeout(timeout, group)
