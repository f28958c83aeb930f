"""What can be trained on, `--data`; nothing is ever downloaded by a run."""

from __future__ import annotations

from importlib import import_module

import torch

from ..errors import TrainError
from .samples import Samples

# A module of this package each, with a function `images`.
NAMES = ("digits", "mnist5k", "synthetic", "folder")
FORMS = "digits, mnist5k, synthetic or folder:PATH"


def load(data: str, dtype: torch.dtype, device: torch.device) -> tuple[Samples, Samples]:
    """Return the training and the held-out samples, the same on every rank and in every run.

    `data` is one of FORMS. Raises TrainError if it is none, or if what it needs is not there.
    """
    name, _, argument = data.partition(":")
    if name not in NAMES or bool(argument) != (name == "folder"):
        raise TrainError(f"--data must be {FORMS}, got {data}")
    images, labels = import_module(f"muster.train.data.{name}").images(*filter(None, [argument]))
    return Samples(images.to(device, dtype), labels.to(device, torch.int64)).split()
