"""A folder of images, a folder for each class: PATH/cat/1.jpg, PATH/dog/2.png.

Each image is scaled to 32x32 and kept in memory, so this is for thousands of images, not for ImageNet. Every
host needs the folder, at the same path; or PATH is the name of a data set that was pushed (pushed.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from ...data.pushed import folder
from ...job.failure import TrainError

SIZE = 32
SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"}


def images(path: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the images below `path`, [n, 3, 32, 32], and the number of each one's folder by name."""
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
