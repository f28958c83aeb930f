"""Which samples a rank works on: the same global batches at any number of ranks, each divided among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import Sampler

from ..job.failure import TrainError


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of one global batch: `indices`, int64 [k], of the `batch_size` in all. k may be 0."""

    indices: torch.Tensor
    batch_size: int


class GlobalBatchSampler(Sampler[list[int]]):
    """Cuts one random order per epoch into global batches, and gives each rank every n-th sample of a batch.

        DataLoader(dataset, batch_sampler=GlobalBatchSampler(samples=len(dataset), batch_size=64, ...))

    Every sample comes up exactly once in an epoch, whether or not anything divides: the last batch may be
    smaller, and a rank's share of it smaller than another's, or empty. (torch's DistributedSampler repeats
    samples to make the shares equal, so there the training depends on the number of ranks.) Every rank gets
    `len(sampler)` shares, so that all take part in the same collectives. `shuffle=False` keeps the samples'
    own order. `drop_last` leaves out a smaller last batch, with other samples in each epoch.
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
        drop_last: bool = False,
    ) -> None:
        self.samples = samples
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.epoch = 0
        self.skip = 0

    @property
    def order(self) -> dict[str, int]:
        """What the order depends on, beside the epoch; `version` changes with the code below."""
        return {"samples": self.samples, "batch_size": self.batch_size, "seed": self.seed, "version": 2}

    @property
    def used(self) -> int:
        """How many samples an epoch uses."""
        return self.samples - (self.samples % self.batch_size if self.drop_last else 0)

    def set_epoch(self, epoch: int, *, skip: int = 0) -> None:
        """Choose the order: a function of seed and epoch alone, so that a resumed run continues with it.

        The first `skip` batches of the epoch, which are done already, are left out.
        """
        self.epoch, self.skip = epoch, skip

    def __len__(self) -> int:
        return len(range(0, self.used, self.batch_size))

    def __iter__(self) -> Iterator[list[int]]:
        """Give a DataLoader the numbers of this rank's samples in each batch.

        Raises TrainError, on every rank, where a rank would have none: a DataLoader cannot make a batch of
        no samples. Use `shares` for that.
        """
        smallest = self.used % self.batch_size or min(self.batch_size, self.used)
        if smallest < self.world_size:
            raise TrainError(
                f"a batch of {smallest} samples has none for some of {self.world_size} ranks\n"
                "take a larger batch_size, or leave out a smaller last batch with drop_last=True"
            )
        for share in self.shares():
            yield share.indices.tolist()

    def shares(self) -> Iterator[Share]:
        """Return this rank's share of each batch; a share may be empty."""
        order = self._permutation() if self.shuffle else torch.arange(self.samples)
        for start in range(self.skip * self.batch_size, self.used, self.batch_size):
            batch = order[start : min(start + self.batch_size, self.used)]
            yield Share(batch[self.rank :: self.world_size], len(batch))

    def _permutation(self) -> torch.Tensor:
        """Return the epoch's order; it mixes seed and epoch, so that no two pairs share an order."""
        mixed = np.random.SeedSequence((self.seed, self.epoch)).generate_state(1, np.uint64)
        return torch.randperm(self.samples, generator=torch.Generator().manual_seed(int(mixed[0])))
