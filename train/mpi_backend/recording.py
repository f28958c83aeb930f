"""Collectives as others see them: torch's profiler, and the recorder of a rank launched with `--record`.

The recorder is a module that the launcher has loaded into the rank (deploy/features/why/in_rank). It sees
calls of torch.distributed, but not those that torch's C++ makes, such as DDP's.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._C import _autograd

enabled = _autograd._profiler_enabled


def event(name: str, tensors: Sequence[torch.Tensor]) -> Callable[[], None] | None:
    """Begin an event, if a profiler records; returns the function that ends it."""
    if not enabled():
        return None
    shown = [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in tensors]
    handle = _autograd._record_function_with_args_enter(f"mpi:{name}", *shown)

    def end() -> None:
        # torch records an event as asynchronous, which this one is, only if another thread ends it.
        ending = threading.Thread(target=_autograd._record_function_with_args_exit, args=(handle,))
        ending.start()
        ending.join()

    return end


def recorder() -> Any:
    """Return the recorder, if this rank was launched with `--record`; else None."""
    return getattr(sys.modules.get("muster_recorder"), "recorder", None)


def recorded(
    run: Callable[[], None], group: Any, name: str, inputs: Sequence[torch.Tensor]
) -> Callable[[], None]:
    """Note a collective that has been called; returns `run`, which also notes its end."""
    notes = recorder()
    return partial(_run, notes, notes.begin_work(group, name, inputs), run) if notes else run


def run_recorded(
    notes: Any, group: Any, name: str, inputs: Sequence[torch.Tensor], run: Callable[..., object], *of: Any
) -> None:
    """Run a collective with the arguments `of`, and note its begin and its end."""
    _run(notes, notes.begin_work(group, name, inputs), run, *of)


def _run(notes: Any, place: int, run: Callable[..., object], *of: Any) -> None:
    failed = True
    try:
        run(*of)
        failed = False
    finally:
        notes.end_work(place, failed=failed)
