"""Notes each backward pass of DistributedDataParallel, for a torch that records NCCL alone (2.6).

DDP's C++ starts its collectives there, unseen by Python. Its ranks do as many synchronised passes, so a pass
counts as a collective of DDP's group. Standard library only, Python 3.9.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any, Protocol


class Notes(Protocol):
    """What notes the beginning and the end of a pass; neither raises."""

    def begin_pass(self, group: Any) -> int: ...
    def end_work(self, place: int, *, failed: bool = False) -> None: ...


class _Next(threading.local):
    """The group of the DDP whose next backward pass in this thread sums gradients."""

    group: Any = None


def watch(torch: Any, notes: Notes) -> None:
    """Have the passes of every DDP noted. `AttributeError` if this torch is made in another way."""
    reducer, coming = torch._C._distributed_c10d.Reducer, _Next()
    prepare, backward = reducer.prepare_for_backward, torch.autograd.backward

    def prepare_for_backward(self: Any, *args: Any) -> Any:
        ddp = sys._getframe(1).f_locals.get("self")  # DDP calls it itself, unless under no_sync()
        coming.group = getattr(ddp, "process_group", None)
        return prepare(self, *args)

    @functools.wraps(backward)
    def noted(*args: Any, **kwargs: Any) -> Any:
        group, coming.group = coming.group, None
        place, failed = (notes.begin_pass(group) if group else 0), True
        try:
            result = backward(*args, **kwargs)
            failed = False
            return result
        finally:
            notes.end_work(place, failed=failed)

    reducer.prepare_for_backward = prepare_for_backward
    torch.autograd.backward = noted
