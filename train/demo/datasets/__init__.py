"""The data sets of `--data`, and which rank gets which samples; a run never downloads anything."""

from __future__ import annotations

from importlib import import_module

import torch

from ...job.failure import TrainError
from .samples import Samples

# For each data set, the module of this package whose function `images` reads it.
MODULES = {"digits": "digits", "synthetic": "synthetic", "folder": "image_folder"}
FORMS = "digits, synthetic or folder:PATH"


def load(data: str, dtype: torch.dtype, device: torch.device) -> tuple[Samples, Samples]:
    """Return the training and the held-out samples, the same on every rank and in every run.

    `data` is one of FORMS. Raises TrainError if it is another, or if its package or files are missing.
    """
    name, _, argument = data.partition(":")
    if name not in MODULES or bool(argument) != (name == "folder"):
        raise TrainError(f"--data must be {FORMS}, got {data}")
    module = import_module(f"{__name__}.{MODULES[name]}")
    images, labels = module.images(*filter(None, [argument]))
    return Samples(images.to(device, dtype), labels.to(device, torch.int64)).split()
