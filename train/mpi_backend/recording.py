"""Notes collectives in the record of this rank, if the rank was launched with `--record`.

The recorder is a module that the launcher has loaded into the rank (deploy/agent/job/in_rank). It sees calls
of torch.distributed, but not those that torch's C++ makes, such as DDP's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch


def module() -> Any:
    """Return the launcher's module, if this rank was launched with `--record`."""
    return sys.modules.get("muster_recorder")


def recorded(
    run: Callable[[], None], group: Any, name: str, inputs: Sequence[torch.Tensor]
) -> Callable[[], None]:
    """Note a collective that has been called; returns `run`, which also notes its end."""
    recorder: Any = getattr(module(), "recorder", None)
    if recorder is None:
        return run
    place = recorder.begin_work(group, name, inputs)

    def run_and_note() -> None:
        failed = True
        try:
            run()
            failed = False
        finally:
            recorder.end_work(place, failed=failed)

    return run_and_note
