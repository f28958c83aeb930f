"""Which samples a rank works on: the same global batches at any number of ranks, each cut among the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of one global batch: `indices`, int64 [k], of the `batch_size` in all. k may be 0."""

    indices: torch.Tensor
    batch_size: int


class GlobalBatchSampler:
    """Cuts one random order per epoch into global batches, and deals each batch out to the ranks like cards.

    Every sample comes up exactly once in an epoch, whatever divides or does not: the last batch may be
    smaller, a share smaller than another or empty. (torch's DistributedSampler repeats samples to make the
    shares equal, and so the training depends on the number of ranks.) Every rank gets `len(sampler)`
    shares, so that all take part in the same collectives.
    """

    def __init__(self, *, samples: int, batch_size: int, rank: int, world_size: int, seed: int) -> None:
        self.samples = samples
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.epoch = 0
        self.skip = 0

    def set_epoch(self, epoch: int, *, skip: int = 0) -> None:
        """Choose the order: a function of seed and epoch alone, so that a resumed run continues with it.

        The first `skip` batches of the epoch are left out: they were done before.
        """
        self.epoch, self.skip = epoch, skip

    def __len__(self) -> int:
        return len(range(0, self.samples, self.batch_size))

    def __iter__(self) -> Iterator[Share]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.samples, generator=generator)
        for start in range(self.skip * self.batch_size, self.samples, self.batch_size):
            batch = order[start : start + self.batch_size]
            yield Share(batch[self.rank :: self.world_size], len(batch))
