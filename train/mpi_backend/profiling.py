"""Collectives as events in torch's profiler, `mpi:all_reduce` and so on, from their call to their end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

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
