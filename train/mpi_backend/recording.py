"""Notes collectives in the record of this rank, if the rank was launched with `--record`.

The recorder is a module that the launcher has loaded into the rank (deploy/agent/job/in_rank). It sees calls
of torch.distributed, but not those that torch's C++ makes, such as DDP's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch


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
