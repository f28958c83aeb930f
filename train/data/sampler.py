"""Which samples a rank works on: the same global batches at any number of ranks, each divided among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of one global batch: `indices`, int64 [k], of the `batch_size` in all. k may be 0."""

    indices: torch.Tensor
    batch_size: int


class GlobalBatchSampler:
    """Cuts one random order per epoch into global batches, and gives each rank every n-th sample of a batch.

    Every sample comes up exactly once in an epoch, whether or not anything divides: the last batch may be
    smaller, and a rank's share of it smaller than another's, or empty. (torch's DistributedSampler repeats
    samples to make the shares equal, so there the training depends on the number of ranks.) Every rank gets
    `len(sampler)` shares, so that all take part in the same collectives. `shuffle=False` keeps the samples'
    own order.
    """

    def __init__(
        self,
        *,
        samples: int,
        batch_size: int,
        rank: int,
        world_size: int,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        self.samples = samples
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0
        self.skip = 0

    @property
    def order(self) -> dict[str, int]:
        """What the order depends on, beside the epoch; `version` changes with the code below."""
        return {"samples": self.samples, "batch_size": self.batch_size, "seed": self.seed, "version": 2}

    def set_epoch(self, epoch: int, *, skip: int = 0) -> None:
        """Choose the order: a function of seed and epoch alone, so that a resumed run continues with it.

        The first `skip` batches of the epoch are left out: they are done already.
        """
        self.epoch, self.skip = epoch, skip

    def __len__(self) -> int:
        return len(range(0, self.samples, self.batch_size))

    def __iter__(self) -> Iterator[Share]:
        order = self._permutation() if self.shuffle else torch.arange(self.samples)
        for start in range(self.skip * self.batch_size, self.samples, self.batch_size):
            batch = order[start : start + self.batch_size]
            yield Share(batch[self.rank :: self.world_size], len(batch))

    def _permutation(self) -> torch.Tensor:
        """Return the epoch's order; seed and epoch are mixed, so that no two pairs have one order."""
        mixed = np.random.SeedSequence((self.seed, self.epoch)).generate_state(1, np.uint64)
        return torch.randperm(self.samples, generator=torch.Generator().manual_seed(int(mixed[0])))
