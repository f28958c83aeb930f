"""GPUs' streams: what has been queued there, and which GPUs a result is on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def stream_event(device: torch.device) -> torch.cuda.Event:
    """Return an event of this thread's stream on `device`: complete when all that is queued there is."""
    with torch.cuda.device(device):
        event = torch.cuda.Event()
        event.record()
    return event


def gpus_of(tensors: Sequence[Any]) -> list[int | str | torch.device]:
    """Return the GPUs of the tensors in a list, or in lists in it."""
    flat = [each for one in tensors for each in (one if isinstance(one, list) else [one])]
    return [*dict.fromkeys(each.device for each in flat if each.device.type == "cuda")]
