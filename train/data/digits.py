"""The handwritten digits: 1797 real images, 8x8, that scikit-learn ships.

E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998,
https://archive.ics.uci.edu/dataset/80, CC BY 4.0; these are what UCI calls the test set.
"""

from __future__ import annotations

from pathlib import Path

import torch

from ..job.failure import TrainError
from .table import in_package, read

# Where the node image keeps the file, instead of the whole of scikit-learn.
WITHOUT_SCIKIT_LEARN = Path("/usr/share/muster/digits.csv.gz")


def images() -> tuple[torch.Tensor, torch.Tensor]:
    """Return 1797 images, [n, 1, 8, 8], and labels."""
    table = read(digits_file())
    return (table[:, :-1] / 16).reshape(-1, 1, 8, 8), table[:, -1]  # pixels are from 0 to 16


def digits_file() -> Path:
    """Find digits.csv.gz without importing scikit-learn, which would load SciPy on every rank."""
    for path in (in_package("sklearn", "datasets/data/digits.csv.gz"), WITHOUT_SCIKIT_LEARN):
        if path and path.is_file():
            return path
    raise TrainError(
        f"no digits to train on, neither in the package scikit-learn nor at {WITHOUT_SCIKIT_LEARN}\n"
        "pip install scikit-learn"
    )
