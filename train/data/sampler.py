"""Which samples a rank works on: the same global batches at any number of ranks, each divided among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import Sampler

from ..job.failure import TrainError
from .order import shuffled

AT_ONCE = 2**15  # positions of the order that are computed together


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

    The order is computed as it is needed (order.py), so a rank needs no memory for it, however many samples
    there are.
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
        """Raise TrainError if there is nothing to train on, or no such rank."""
        if samples < 1:
            raise TrainError("the data set has no samples: is its path right, and did a filter leave any?")
        if batch_size < 1:
            raise TrainError(f"batch_size must be 1 or more samples, got {batch_size}")
        if drop_last and samples < batch_size:
            raise TrainError(
                f"{samples} samples make no whole batch of {batch_size}, and drop_last leaves out a smaller "
                "one: take a smaller batch_size"
            )
        if not 0 <= rank < world_size:
            raise TrainError(f"a sampler for rank {rank} of {world_size}: there is no such rank")
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
    def order(self) -> dict[str, int | bool]:
        """What the order depends on, beside the epoch; `version` changes with the code below."""
        names = ("samples", "batch_size", "seed", "shuffle", "drop_last")
        return {**{name: getattr(self, name) for name in names}, "version": 3}

    @property
    def used(self) -> int:
        return self.samples - (self.samples % self.batch_size if self.drop_last else 0)

    def set_epoch(self, epoch: int, *, skip: int = 0) -> None:
        """Choose the order: a function of seed and epoch alone, so that a resumed run continues with it.

        The first `skip` batches of the epoch, which are done already, are left out.
        """
        self.epoch, self.skip = epoch, skip

    @property
    def batches(self) -> int:
        return -(-self.used // self.batch_size)

    def __len__(self) -> int:
        """Return how many batches are left of the epoch: so many does an iteration yield."""
        return max(0, self.batches - self.skip)

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
        first, indices = 0, torch.empty(0, dtype=torch.int64)  # at these positions of the order and after
        for start in range(self.skip * self.batch_size, self.used, self.batch_size):
            end = min(start + self.batch_size, self.used)
            if end > first + len(indices):
                first, indices = start, self._indices(start, end)
            batch = indices[start - first : end - first]
            yield Share(batch[self.rank :: self.world_size], end - start)

    def _indices(self, start: int, end: int) -> torch.Tensor:
        """Return the indices at the positions `start` to `end` of the epoch's order, and some after it."""
        end = min(self.used, max(end, start + AT_ONCE))
        positions = np.arange(start, end, dtype=np.uint64)
        if self.shuffle:
            positions = shuffled(positions, self.samples, (self.seed, self.epoch))
        return torch.from_numpy(positions.astype(np.int64))
