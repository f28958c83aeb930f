"""The handwritten digits: 1797 real images, 8x8, that scikit-learn ships. Nothing is downloaded.

E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998,
https://archive.ics.uci.edu/dataset/80, CC BY 4.0; these are what UCI calls the test set.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from train.errors import TrainError

# Where the image keeps the file, instead of the whole of scikit-learn.
WITHOUT_SCIKIT_LEARN = Path("/usr/share/muster/digits.csv.gz")
HELD_OUT = 360  # a fifth


@dataclass(frozen=True, slots=True)
class Digits:
    """`images`, [n, 1, 8, 8] from 0 (white) to 1 (black), and their `labels`, int64 [n] from 0 to 9."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, indices: torch.Tensor | slice) -> Digits:
        return Digits(self.images[indices], self.labels[indices])


def digits_file() -> Path:
    """Find digits.csv.gz without importing scikit-learn, which would load SciPy on every rank."""
    package = find_spec("sklearn")
    folders = (package.submodule_search_locations if package else None) or ()
    candidates = [Path(folder, "datasets/data/digits.csv.gz") for folder in folders]
    for path in [*candidates, WITHOUT_SCIKIT_LEARN]:
        if path.is_file():
            return path
    raise TrainError(
        f"no digits to train on, neither in the package scikit-learn nor at {WITHOUT_SCIKIT_LEARN}\n"
        "pip install scikit-learn"
    )


def load_digits(dtype: torch.dtype, device: torch.device) -> tuple[Digits, Digits]:
    """Return the training and the held-out digits: 1437 and 360, the same on every rank and in every run."""
    table = torch.from_numpy(np.loadtxt(digits_file(), delimiter=","))
    # A row is 64 pixels, from 0 to 16, and the label.
    shuffled = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(0))]
    images = (shuffled[:, :-1] / 16).reshape(-1, 1, 8, 8).to(device, dtype)
    digits = Digits(images, shuffled[:, -1].to(device, torch.int64))
    return digits.at(slice(HELD_OUT, None)), digits.at(slice(HELD_OUT))
