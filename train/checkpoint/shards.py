"""The files of a sharded checkpoint: each rank writes the parts of the tensors that it holds.

    checkpoints/step-00000120/0003-of-0008.pt      the parts of rank 3, as torch.save wrote them
    checkpoints/step-00000120/0003-of-0008.json    which parts these are, and the SHA-256; written last

A file is there when its .json is; a checkpoint is complete when the files of all ranks of one save are there,
wherever they lie. Nothing is unpickled that could run code: the .pt is read as data alone.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ..job.failure import TrainError
from ..job.values import decoded
from .files import HashingFile, Unfit, hash_of, sync, sync_folder
from .parts import Part

INDEX_AT_MOST = 64 << 20  # bytes of a rank's .json
NAME = re.compile("[0-9]{4,9}-of-[0-9]{4,9}")


@dataclass(frozen=True, slots=True)
class Index:
    """What a rank's .json says: the save that it is of, the .pt's SHA-256 and size, its parts in order."""

    save: str
    sha256: str
    size: int
    parts: list[Part]


def name_of(rank: int, ranks: int) -> str:
    """Return the name of a rank's files, without suffix."""
    return f"{rank:04d}-of-{ranks:04d}"


def ranks_of(name: str) -> tuple[int, int]:
    """Return the rank that wrote the files of this name, and how many ranks there were."""
    rank, _, ranks = name.partition("-of-")
    return int(rank), int(ranks)


def names(folder: Path) -> list[str]:
    """Return the names of the files that are in the folder of a checkpoint."""
    return sorted(path.stem for path in folder.glob("*.json") if NAME.fullmatch(path.stem))


def write(path: Path, save: str, parts: list[Part], contents: dict[str, Any]) -> None:
    """Write the files of a rank at `path`, which has no suffix; raises OSError."""
    with _new(path) as file:
        torch.save(contents, file)  # type: ignore[arg-type]  # it needs write and flush, no more
        sync(file.file)
        _commit(path, Index(save, file.sha256.hexdigest(), file.file.tell(), parts))


@contextmanager
def _new(path: Path) -> Iterator[HashingFile]:
    """Give the block the .pt to fill; an error removes the files at `path`, which may fill the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".pt").open("wb") as raw:
        file = HashingFile(raw)
        try:
            yield file
        except BaseException as error:  # noqa: BLE001 - it is raised
            for suffix in (".pt", ".new"):
                path.with_suffix(suffix).unlink(missing_ok=True)
            raise (file.error or error) from None  # torch's is about positions


def write_received(path: Path, index: Index, pieces: Iterable[torch.Tensor]) -> None:
    """Write the files of another rank from what it sends; raises OSError or Unfit, once all has arrived.

    What arrives is taken in any case: the sender waits for that.
    """
    arriving = iter(pieces)
    try:
        with _new(path) as file:
            for piece in arriving:
                file.write(piece.numpy().tobytes())
            sync(file.file)
            if file.sha256.hexdigest() != index.sha256:
                raise Unfit(f"{path.name}.pt arrived damaged")
            _commit(path, index)
    finally:
        for _ in arriving:
            pass


def _commit(path: Path, index: Index) -> None:
    """Make the files count: the .json appears by a rename, once all is on the disk."""
    beside = path.with_suffix(".new")
    with beside.open("wb") as record:
        record.write(encoded(index))
        sync(record)
    beside.rename(path.with_suffix(".json"))
    sync_folder(path.parent)


def encoded(index: Index) -> bytes:
    """Return an index as JSON."""
    return json.dumps(asdict(index)).encode()


def read_index(path: Path) -> Index:
    """Read the .json of the files at `path`; raises Unfit."""
    try:
        with path.with_suffix(".json").open("rb") as file:
            text = file.read(INDEX_AT_MOST + 1)
    except OSError as error:
        raise Unfit(f"{path.name}.json: {error.strerror}") from error
    if len(text) > INDEX_AT_MOST:
        raise Unfit(f"{path.name}.json has more than {INDEX_AT_MOST} bytes")
    return checked_index(text, f"{path.name}.json")


def checked_index(text: bytes, name: str) -> Index:
    """Return the index in `text`, which is called `name`; raises Unfit."""
    try:
        index: Index = decoded(text, Index, name)
    except TrainError as error:
        raise Unfit(str(error).partition("\n")[0]) from None
    if index.size < 0:
        raise Unfit(f"{name}: a file of {index.size} bytes")
    for part in index.parts:
        box = part.box
        fits = len(box.offset) == len(box.shape) == len(box.whole)
        if not fits or any(
            at < 0 or length < 0 or at + length > wide
            for at, length, wide in zip(box.offset, box.shape, box.whole, strict=True)
        ):
            raise Unfit(f"{name}: a part of {part.name} lies outside of it")
    return index


def verified(path: Path) -> Index:
    """Return the index of the files at `path`; raises Unfit if the .pt does not have the bytes written."""
    index = read_index(path)
    try:
        with path.with_suffix(".pt").open("rb") as file:
            digest = hash_of(file)
    except OSError as error:
        raise Unfit(f"{path.name}.pt: {error.strerror}") from error
    if digest != index.sha256:
        raise Unfit(f"{path.name}.pt does not have the checksum in {path.name}.json")
    return index


def read(path: Path, index: Index) -> tuple[list[torch.Tensor], Any]:
    """Return the tensors of a .pt, mapped from it, and its tree; raises Unfit.

    Only the pages are read that are used.
    """
    name = f"{path.name}.pt"
    contents = data_of(path.with_suffix(".pt"), name)
    tensors, tree = (contents.get(key) if isinstance(contents, dict) else None for key in ("tensors", "tree"))
    if not isinstance(tensors, list) or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise Unfit(f"{name} is no part of a checkpoint")
    if [list(tensor.shape) for tensor in tensors] != [part.box.shape for part in index.parts]:
        raise Unfit(f"{name} does not have the parts that {path.name}.json lists")
    return tensors, tree


def data_of(source: Path | BinaryIO, name: str) -> Any:
    """Return the data that torch.save wrote; raises Unfit, with `name`, and runs no code of it."""
    try:
        return torch.load(source, map_location="cpu", weights_only=True, mmap=isinstance(source, Path))
    except OSError as error:
        raise Unfit(f"{name}: {error.strerror}") from error
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise Unfit(f"{name} is no part of a checkpoint: {reason}") from error
