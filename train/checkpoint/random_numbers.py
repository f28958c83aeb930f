"""What a checkpoint keeps of each rank on its own: its random number generators, and its sum of losses."""

from __future__ import annotations

import random
import zlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from ..job.group import Group


@dataclass(frozen=True, slots=True)
class RankState:
    """What a checkpoint has of each rank, as it travels: its sum of losses and its random numbers.

    `python` and `numpy` are the states of these generators; those of torch are bytes in hexadecimal.
    """

    loss_sum: float
    python: tuple[int, list[int], float | None]
    numpy: tuple[list[int], int, int, float]
    of_torch: str
    of_cuda: str

    @classmethod
    def here(cls, loss_sum: float, device: torch.device) -> RankState:
        """Return the state of this rank."""
        state = random_state(device)
        version, internal, gauss_next = state["python"]
        words, *others = state["numpy"]
        return cls(
            loss_sum,
            (version, list(internal), gauss_next),
            (words.tolist(), *others),
            *(state[name].numpy().tobytes().hex() if name in state else "" for name in ("torch", "cuda")),
        )

    def in_checkpoint(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, with the result of random_state."""
        words, *others = self.numpy
        state = {
            "python": self.python,
            "numpy": [torch.tensor(words, dtype=torch.int64), *others],
            "torch": _bytes(self.of_torch),
        }
        if self.of_cuda:
            state["cuda"] = _bytes(self.of_cuda)
        return {"random": state, "loss_sum": self.loss_sum}


class RandomStreams:
    """The random numbers of all ranks, as a part of a checkpoint: `{"random": RandomStreams(job), ...}`.

    At the number of ranks that made it every rank draws on as if the training had not been interrupted. At
    another number each begins a stream of its own, which depends on the checkpoint: not the numbers of the
    first step again.
    """

    def __init__(self, group: Group) -> None:
        self.group = group

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all ranks, as numbers and text. A collective."""
        mine = RankState.here(0.0, self.group.device)
        return {"ranks": [asdict(each) for each in self.group.all_gather(mine, RankState)]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Draw on from `state`, which state_dict returned."""
        ranks = [RankState(**each) for each in state["ranks"]]
        if len(ranks) == self.group.world_size:
            set_random_state(ranks[self.group.rank].in_checkpoint()["random"], self.group.device)
        else:
            self.group.seed(zlib.crc32(ranks[0].of_torch.encode()))


def _bytes(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


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
