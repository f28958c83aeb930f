"""What can be trained on is there, the same everywhere, or a clear error says what is missing."""

from __future__ import annotations

import gzip
import hashlib
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from muster.train.demo import datasets
from muster.train.demo.datasets import Samples, load
from muster.train.demo.image_network import image_network
from muster.train.job.failure import TrainError

CPU = torch.device("cpu")


def _load(data: str) -> tuple[Samples, Samples]:
    return load(data, CPU)


@pytest.mark.parametrize(
    ("data", "shape", "held_out"), [("digits", (1, 8, 8), 360), ("synthetic", (1, 28, 28), 400)]
)
def test_samples_are_the_same_and_in_one_part_each(data: str, shape: tuple[int, ...], held_out: int) -> None:
    training, test = _load(data)
    assert training.images.shape[1:] == shape
    assert len(test) == held_out
    for part, again in zip((training, test), _load(data), strict=True):
        assert torch.equal(again.images, part.images)
        assert torch.equal(again.labels, part.labels)
    images, labels = getattr(datasets, data)()
    assert _rows(training.images, training.labels) + _rows(test.images, test.labels) == _rows(images, labels)
    assert 0 <= training.images.min() < training.images.max() <= 1
    assert set(training.labels.tolist()) == set(range(10))


def _rows(images: torch.Tensor, labels: torch.Tensor) -> Counter[bytes]:
    """How often each image occurs with its label; of the digits, some do twice."""
    numbers = torch.cat([images.flatten(1), labels.unsqueeze(1)], dim=1).float().numpy()
    return Counter(row.tobytes() for row in numbers)


def test_a_split_loses_and_repeats_nothing() -> None:
    numbers = torch.arange(11)
    training, held_out = Samples(numbers, numbers).split()
    assert sorted([*training.labels.tolist(), *held_out.labels.tolist()]) == list(range(11))
    assert len(held_out) == 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes, five images each, of one colour: red cats and blue dogs."""
    from PIL import Image

    for name, colour in (("dog", (0, 0, 255)), ("cat", (255, 0, 0))):
        (tmp_path / name).mkdir()
        for number in range(5):
            Image.new("RGB", (40 + number, 60), colour).save(tmp_path / name / f"{number}.png")
    return tmp_path


def test_a_folder_has_a_class_per_folder(folder: Path) -> None:
    training, held_out = _load(f"folder:{folder}")
    assert training.images.shape == (8, 3, 32, 32)
    assert len(held_out) == 2
    assert torch.equal(training.images[:, 2, 0, 0], training.labels.float())  # dogs, 1, are blue
    assert image_network((3, 32, 32), 10)(training.images).shape == (8, 10)


def test_an_image_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "cat" / "9.jpg").write_bytes(b"no image")
    with pytest.raises(TrainError, match=r"cannot read the image .*cat/9\.jpg"):
        _load(f"folder:{folder}")


def test_whatever_a_decoder_raises_names_the_image(folder: Path) -> None:
    from PIL import Image

    image = folder / "cat" / "9.png"
    Image.effect_noise((512, 512), 90).save(image)
    whole = image.read_bytes()
    second = whole.index(b"IDAT", whole.index(b"IDAT") + 4)
    image.write_bytes(whole[:second] + b"\0\0\0\0" + whole[second + 4 :])  # Pillow: SyntaxError
    with pytest.raises(TrainError, match=r"cannot read the image .*cat/9\.png: broken PNG file"):
        _load(f"folder:{folder}")


def test_images_without_pillow_are_a_clear_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(TrainError, match="pip install pillow"):
        _load(f"folder:{folder}")


@pytest.mark.parametrize("data", ["cifar", "folder", "folder:", "digits:7", ""])
def test_other_data_are_a_clear_error(data: str) -> None:
    with pytest.raises(TrainError, match="--data must be digits, synthetic or folder:PATH"):
        _load(data)


def test_a_folder_without_classes_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="two or more folders of images"):
        _load(f"folder:{tmp_path}")


def test_the_digits_are_those_of_scikit_learn() -> None:
    """The accuracy that documents and tests state is that of these images."""
    digest = hashlib.sha256(gzip.decompress(datasets.DIGITS.read_bytes())).hexdigest()
    assert digest == "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"
