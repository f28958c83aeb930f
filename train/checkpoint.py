"""A checkpoint that is always whole: the old one or the new one, whenever the machine stops."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from train.errors import TrainError


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint at `path` by `state`, which holds tensors, numbers, strings and dicts of them.

    It is written beside `path`, on the same file system, and renamed once it is on the disk. Without the
    first fsync a power cut can leave the new name with no data behind it; without the second, the old name.
    """
    beside = path.with_name(f"{path.name}.new")
    with beside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint to the CPU; data only, so that a checkpoint from elsewhere cannot run code here.

    Raises TrainError if there is none, or if it is cut short or no checkpoint of this program.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise TrainError(f"cannot read the checkpoint {path}: {error.strerror}") from error
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise TrainError(f"{path} is cut short or is not a checkpoint; resume from another one") from error
    if not isinstance(state, dict) or not state.keys() >= {"model", "optimizer", "epoch", "rng"}:
        raise TrainError(f"{path} holds no checkpoint of this program")
    return state
