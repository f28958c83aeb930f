"""Data to train on: the interface, and images in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch


class Data(Protocol):
    """Samples, numbered from 0; every rank has the same ones."""

    def __len__(self) -> int: ...

    def batch(self, indices: torch.Tensor) -> tuple[Any, Any]:
        """Return inputs and targets of the samples `indices`, int64 [n], on the device of the model."""


@dataclass(frozen=True, slots=True)
class Samples:
    """`images`, [n, channels, height, width] from 0 to 1, and their `labels`, int64 [n] from 0, in memory."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, indices: torch.Tensor | slice) -> Samples:
        return Samples(self.images[indices], self.labels[indices])

    def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[indices], self.labels[indices]

    @property
    def classes(self) -> int:
        """Return the number of classes of a model for these samples: at least ten, as for digits."""
        return max(10, int(self.labels.max()) + 1)

    def split(self) -> tuple[Samples, Samples]:
        """Return four fifths for training and a fifth to hold out, drawn at random, but always the same."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0)).to(self.labels.device)
        held_out = -(-len(self) // 5)
        return self.at(order[held_out:]), self.at(order[:held_out])
