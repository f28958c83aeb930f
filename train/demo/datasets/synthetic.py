"""Random images, 1x28x28, with labels that a network can learn: to try a cluster without any data."""

from __future__ import annotations

import torch

COUNT, CLASSES, SIZE = 2000, 10, 28


def images() -> tuple[torch.Tensor, torch.Tensor]:
    """Return 2000 images, the same in every run: each the random pattern of its class plus noise."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (COUNT,), generator=generator)
    patterns = torch.rand(CLASSES, 1, SIZE, SIZE, generator=generator)
    noise = torch.rand(COUNT, 1, SIZE, SIZE, generator=generator)
    return 0.5 * patterns[labels] + 0.5 * noise, labels
