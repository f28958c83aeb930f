"""Tables of numbers that packages ship: a row is the pixels of an image, and its label."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch


def in_package(package: str, file: str) -> Path | None:
    """Return the path of `file` in a package, without importing it; None if it is not installed."""
    spec = find_spec(package)
    folders = (spec.submodule_search_locations if spec else None) or ()
    return next((Path(folder, file) for folder in folders), None)


def read(path: Path) -> torch.Tensor:
    """Return the table as float64 [rows, columns]."""
    return torch.from_numpy(np.loadtxt(path, delimiter=","))
