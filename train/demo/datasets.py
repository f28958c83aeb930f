"""The data sets of `--data`, and which samples are held out; a run never downloads anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..data.pushed import folder
from ..job.failure import TrainError

FORMS = "digits, synthetic or folder:PATH"
DIGITS = Path(__file__).with_name("digits.csv.gz")
PATTERNS, CLASSES = 2000, 10  # of synthetic
SIZE = 32  # of the images of a folder
SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"}
Images = tuple[torch.Tensor, torch.Tensor]
"""Images, [n, channels, height, width] from 0 to 1, and their labels, [n] from 0."""


@dataclass(frozen=True, slots=True)
class Samples:
    """`images`, [n, channels, height, width] from 0 to 1, and their `labels`, int64 [n] from 0, in memory."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, indices: torch.Tensor | slice) -> Samples:
        return Samples(self.images[indices], self.labels[indices])

    @property
    def classes(self) -> int:
        """The number of classes of a model for these samples: at least ten, as for digits."""
        return max(10, int(self.labels.max()) + 1)

    def split(self) -> tuple[Samples, Samples]:
        """Return four fifths for training and a fifth to hold out, drawn at random, but always the same."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0)).to(self.labels.device)
        held_out = -(-len(self) // 5)
        return self.at(order[held_out:]), self.at(order[:held_out])


def load(data: str, device: torch.device) -> tuple[Samples, Samples]:
    """Return the training and the held-out samples, the same on every rank and in every run.

    `data` is one of FORMS. Raises TrainError if it is another, or if its package or files are missing.
    """
    name, _, path = data.partition(":")
    if name == "folder" and path:
        images, labels = of_folder(path)
    elif data in {"digits", "synthetic"}:
        images, labels = digits() if data == "digits" else synthetic()
    else:
        raise TrainError(f"--data must be {FORMS}, got {data}")
    return Samples(images.to(device, torch.float32), labels.to(device, torch.int64)).split()


def digits() -> Images:
    """Return 1797 real handwritten digits, 8x8.

    E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository,
    1998, https://archive.ics.uci.edu/dataset/80, CC BY 4.0. These are what UCI calls the test set, in the
    file that scikit-learn ships.
    """
    table = torch.from_numpy(np.loadtxt(DIGITS, delimiter=","))
    return (table[:, :-1] / 16).reshape(-1, 1, 8, 8), table[:, -1]  # pixels are from 0 to 16


def synthetic() -> Images:
    """Return 2000 images, 28x28: each the random pattern of its class plus noise, the same in every run."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (PATTERNS,), generator=generator)
    patterns = torch.rand(CLASSES, 1, 28, 28, generator=generator)
    noise = torch.rand(PATTERNS, 1, 28, 28, generator=generator)
    return 0.5 * patterns[labels] + 0.5 * noise, labels


def of_folder(path: str) -> Images:
    """Return the images below `path`, [n, 3, 32, 32], and the number of each one's folder by name.

    There is a folder for each class: PATH/cat/1.jpg, PATH/dog/2.png. Images are kept in memory, so this is
    for thousands, not for ImageNet. Every host needs the folder, at the same path; or PATH is the name of a
    data set that was pushed.
    """
    labelled = list(_files(folder(path)))
    if len({label for _, label in labelled}) < 2:
        raise TrainError(
            f"--data folder:{path} needs two or more folders of images in it, one for each class"
        )
    pixels = np.stack([_read(file) for file, _ in labelled])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255, torch.tensor([label for _, label in labelled])


def _files(root: Path) -> Iterator[tuple[Path, int]]:
    """Go through the folders and their files by name: every host must get the same order."""
    classes = sorted(each for each in root.glob("*") if each.is_dir())
    for label, images_of in enumerate(classes):
        for file in sorted(images_of.rglob("*")):
            if file.suffix.lower() in SUFFIXES:
                yield file, label


def _read(file: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    try:
        from PIL import Image  # noqa: PLC0415 - only this needs it
    except ImportError as error:
        raise TrainError("--data folder needs Pillow to read images: pip install pillow") from error
    try:
        with Image.open(file) as image:
            return np.asarray(image.convert("RGB").resize((SIZE, SIZE)))
    except Exception as error:  # Pillow's decoders raise OSError, but SyntaxError, ValueError and others too
        raise TrainError(f"cannot read the image {file}: {error}") from error
