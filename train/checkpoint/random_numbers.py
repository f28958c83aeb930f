"""The random numbers of a rank: the states of its global generators."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..job.group import Job
from .of_each_rank import OfEachRank


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the states of this rank's global random number generators: Python's, numpy's and torch's."""
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    words = torch.from_numpy(np.asarray(keys, np.int64))
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": [words, int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Continue with `state`, which random_state returned."""
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
    keys, *others = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), *others))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


class RandomStreams(OfEachRank):
    """The random numbers of all ranks, as a part of a checkpoint: `{"random": RandomStreams(job), ...}`.

    At the number of ranks that made it every rank draws on as if the training had not been interrupted. At
    another number each begins a stream of its own, which depends on the checkpoint: not the numbers of the
    first step again.
    """

    def __init__(self, group: Job) -> None:
        super().__init__(group, _Stream(group.device), other=self._begin_others)

    def _begin_others(self, of_ranks: list[Any]) -> None:
        self.group.seed(zlib.crc32(of_ranks[0]["torch"].numpy().tobytes()))


@dataclass(frozen=True, slots=True)
class _Stream:
    """The random numbers of one rank."""

    device: torch.device

    def state_dict(self) -> dict[str, Any]:
        return random_state(self.device)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_random_state(state, self.device)
