"""The handwritten digits: 1797 real images, 8x8, in digits.csv.gz beside this file.

E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998,
https://archive.ics.uci.edu/dataset/80, CC BY 4.0. These are what UCI calls the test set, in the file that
scikit-learn ships.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

FILE = Path(__file__).with_name("digits.csv.gz")


def images() -> tuple[torch.Tensor, torch.Tensor]:
    """Return 1797 images, [n, 1, 8, 8], and labels."""
    table = torch.from_numpy(np.loadtxt(FILE, delimiter=","))
    return (table[:, :-1] / 16).reshape(-1, 1, 8, 8), table[:, -1]  # pixels are from 0 to 16
