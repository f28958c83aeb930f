"""Networks by name, for measurements: two built-in ones, and torchvision's where it is installed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import nn

from muster.train.job.failure import TrainError


@dataclass(frozen=True, slots=True)
class Architecture:
    """A network that maps n images of `shape`, [channels, height, width], to scores, [n, classes]."""

    network: nn.Module
    shape: tuple[int, int, int]
    classes: int


def architecture(name: str) -> Architecture:
    """Build a network with random weights: one of BUILT_IN, or a classification model of torchvision.

    Raises TrainError if there is none of that name, or if it needs torchvision, which is not installed.
    """
    if name in BUILT_IN:
        return Architecture(BUILT_IN[name](), (3, 32, 32), 10)
    built_in = f"without torchvision there are: {', '.join(BUILT_IN)}"
    if find_spec("torchvision") is None:
        raise TrainError(
            f"--arch {name} is torchvision's, which is not installed: pip install torchvision\n{built_in}"
        )
    models = import_module("torchvision.models")
    if name not in models.list_models(module=models):
        raise TrainError(f"torchvision.models has no {name}\n{built_in}")
    return Architecture(models.get_model(name, **_ONE_OUTPUT.get(name, {})), (3, 224, 224), 1000)


def mlp() -> nn.Module:
    """Return 25 million weights in 6 tensors: much to communicate, little to compute."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 4096), nn.ReLU(), nn.Linear(4096, 3072), nn.ReLU(), nn.Linear(3072, 10)
    )


def resnet26() -> nn.Module:
    """Return 0.37 million weights in 77 tensors: little to communicate, but in many pieces.

    He et al., 2016 (arXiv:1512.03385), section 4.2, with GroupNorm for BatchNorm, whose running statistics
    would have to be synchronised.
    """
    layers: list[nn.Module] = [_convolution(3, 16), nn.GroupNorm(4, 16), nn.ReLU()]
    for inputs, width, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2)):
        layers += [_Block(inputs, width, stride), *(_Block(width, width, 1) for _ in range(3))]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


BUILT_IN = {"mlp": mlp, "resnet26": resnet26}
# Without these options the two return a tuple in training: they have auxiliary classifiers.
_ONE_OUTPUT = {
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}


class _Block(nn.Module):
    """Two convolutions, to whose output a shortcut without weights adds the input."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.stride, self.more = stride, width - inputs
        self.layers = nn.Sequential(
            _convolution(inputs, width, stride),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            _convolution(width, width),
            nn.GroupNorm(4, width),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        shortcut = images[:, :, :: self.stride, :: self.stride]
        shortcut = nn.functional.pad(shortcut, (0, 0, 0, 0, 0, self.more))
        return torch.relu(self.layers(images) + shortcut)


def _convolution(inputs: int, width: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, width, kernel_size=3, padding=1, stride=stride, bias=False)
