"""Images and their labels, in memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Samples:
    """`images`, [n, channels, height, width] from 0 to 1, and their `labels`, int64 [n] from 0."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, indices: torch.Tensor | slice) -> Samples:
        return Samples(self.images[indices], self.labels[indices])

    def split(self) -> tuple[Samples, Samples]:
        """Return four fifths for training and a fifth to hold out, drawn at random, but always the same."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0)).to(self.labels.device)
        held_out = -(-len(self) // 5)
        return self.at(order[held_out:]), self.at(order[:held_out])
