"""The checkpoints of one folder: each is complete or absent, and is verified before it is used.

    checkpoints/step-00000120/state.pt           what torch.save wrote
    checkpoints/step-00000120/state.pt.sha256    its SHA-256, as sha256sum writes and checks it

The rename that commits a checkpoint is atomic, but a disk may return other bytes later. So there is a
checksum of the bytes as they were written, in a file beside state.pt, for `sha256sum --check`.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import shutil
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ..job.failure import TrainError

STATE = "state.pt"
CHECKSUM = "state.pt.sha256"
BESIDE = ".new"  # suffix of a checkpoint that is being written, or removed
REPLACED = ".old"  # suffix of a checkpoint while a complete .new of its step takes its place


class Unfit(Exception):
    """Why a file or a checkpoint cannot be used."""


class HashingFile:
    """A file to write from beginning to end; computes the SHA-256 of what is written.

    torch.save turns any error of its file into a RuntimeError about positions; `error` keeps the original.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.sha256 = hashlib.sha256()
        self.flush = file.flush
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise


def stored(folder: Path) -> list[Path]:
    """Return the checkpoints of `folder`, the newest first, damaged ones too; none if there is no folder."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if is_checkpoint(path)), key=step_of, reverse=True)


def is_checkpoint(path: Path) -> bool:
    """Whether `path` has the name of a checkpoint."""
    return re.fullmatch(r"step-\d{8,}", path.name) is not None


def path_of(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of `step` in `folder`."""
    return folder / f"step-{step:08d}"


def step_of(path: Path) -> int:
    """Return the number of steps that were done when the checkpoint at `path` was made."""
    return int(path.name.removeprefix("step-"))


def save(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write `state`, which holds tensors, numbers, strings, lists and dicts of them; returns the checkpoint.

    Raises TrainError if it cannot be written. Earlier checkpoints are left unchanged.
    """
    with new_checkpoint(folder, step) as file:
        torch.save(state, file)  # type: ignore[arg-type]  # it needs write and flush, no more
    return path_of(folder, step)


@contextmanager
def new_checkpoint(folder: Path, step: int) -> Iterator[HashingFile]:
    """Give the block a file to fill; after the block the checkpoint exists, or TrainError is raised.

    Everything is on the disk before the rename: otherwise a power cut can leave the new name without its
    data. The last fsync makes the rename itself durable.
    """
    path = path_of(folder, step)
    beside = path.with_suffix(BESIDE)
    file: HashingFile | None = None
    try:
        recover(folder, replaced(folder))
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        with (beside / STATE).open("wb") as raw:
            file = HashingFile(raw)
            yield file
            sync(raw)
        with (beside / CHECKSUM).open("wb") as record:
            record.write(f"{file.sha256.hexdigest()}  {STATE}\n".encode())
            sync(record)
        sync_folder(beside)
        replace(path)
    except BaseException as error:
        shutil.rmtree(beside, ignore_errors=True)
        cause = (file and file.error) or error
        if not isinstance(cause, OSError):
            raise
        raise TrainError(
            f"cannot write the checkpoint {path}: {cause.strerror}\n"
            "earlier checkpoints are unchanged; make room, or choose another directory with --out"
        ) from error


def sync(file: BinaryIO) -> None:
    """Bring what was written to the disk."""
    file.flush()
    os.fsync(file.fileno())


def replace(path: Path) -> None:
    """Let the complete .new of the checkpoint at `path` take its place; an earlier one becomes .old.

    A kill at any time leaves a complete one, which `recover` puts in place.
    """
    if path.exists():
        path.rename(path.with_suffix(REPLACED))
    path.with_suffix(BESIDE).rename(path)
    sync_folder(path.parent)


def replaced(folder: Path) -> list[int]:
    """Return the steps of `folder` for which `replace` was not finished: these have a .old."""
    old = folder.glob(f"step-*{REPLACED}")
    return [step_of(path) for each in old if is_checkpoint(path := each.with_suffix(""))]


def found(folder: Path) -> dict[int, Path]:
    """Return the checkpoints by step; where `replace` was not finished, the complete one of the two."""
    new = {step: path_of(folder, step).with_suffix(BESIDE) for step in replaced(folder)}
    halves = {step: path if path.exists() else path.with_suffix(REPLACED) for step, path in new.items()}
    return halves | {step_of(path): path for path in stored(folder)}


def recover(folder: Path, steps: Iterable[int]) -> None:
    """Finish what a killed run left of `replace` for these steps. No checkpoint may be under way."""
    for step in steps:
        path = path_of(folder, step)
        old = path.with_suffix(REPLACED)
        if path.with_suffix(BESIDE).exists():
            replace(path)
        elif not path.exists() and old.exists():  # an error, not a kill, ended `replace`
            old.rename(path)
        shutil.rmtree(old, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Bring the names in `folder` to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def verify(path: Path) -> str:
    """Return the SHA-256 of the checkpoint at `path`; raises Unfit if its bytes do not match it."""
    try:
        with (path / CHECKSUM).open(errors="replace") as checksum:
            record = checksum.read(1024).split()  # a longer one is no line of sha256sum
        with (path / STATE).open("rb") as file:
            digest = hash_of(file)
    except OSError as error:
        raise Unfit(f"{error.filename or path}: {error.strerror}") from error
    if record != [digest, STATE]:
        raise Unfit(f"{path / STATE} does not have the checksum in {CHECKSUM}")
    return digest


def hash_of(file: BinaryIO, piece: int = 1 << 20) -> str:
    """Return the SHA-256 of the rest of `file`. hashlib.file_digest needs Python 3.11."""
    sha256 = hashlib.sha256()
    while data := file.read(piece):
        sha256.update(data)
    return sha256.hexdigest()


def load(path: Path) -> dict[str, Any]:
    """Read the verified checkpoint at `path`; data only, so that a foreign one runs no code here.

    Its tensors are on the CPU, mapped from the file: memory holds only the pages that are in use, and one
    copy for all ranks of a host. Raises TrainError if it cannot be read here, or another program wrote it.
    """
    try:
        state = torch.load(path / STATE, map_location="cpu", weights_only=True, mmap=True)
    except OSError as error:  # the folder's writer has read it, but this rank may be on another host
        raise TrainError(
            f"cannot read {path / STATE} on {socket.gethostname()}: {error.strerror}\n"
            "ranks that share --out read it at the same path"
        ) from error
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise TrainError(f"{path / STATE} is no checkpoint of this program: {error}") from error
    if not isinstance(state, dict):
        raise TrainError(f"{path / STATE} is no checkpoint of this program")
    return state


def prune(folder: Path, keep: int) -> None:
    """Remove all checkpoints but the newest `keep`, and what a killed run left half-written.

    No checkpoint may be under way. A kill in the middle leaves nothing that looks like a checkpoint.
    """
    for path in [*folder.glob(f"step-*{REPLACED}"), *folder.glob(f"step-*{BESIDE}")]:
        shutil.rmtree(path, ignore_errors=True)
    for path in stored(folder)[keep:]:
        shutil.rmtree(path.rename(path.with_suffix(BESIDE)), ignore_errors=True)


def set_aside(folder: Path, after: int) -> Path | None:
    """Move the checkpoints later than step `after` to another folder and return it; None if there are none.

    They are damaged, or another run's: left in place, they would be taken for this run's newest.
    """
    later = [path for path in stored(folder) if step_of(path) > after]
    if not later:
        return None
    number = 1
    while (aside := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    aside.mkdir()
    for path in later:
        path.rename(aside / path.name)
    return aside
