"""The files of a sharded checkpoint: each rank writes the parts of the tensors that it holds.

    checkpoints/step-00000120/0003-of-0008.pt      the parts of rank 3, as torch.save wrote them
    checkpoints/step-00000120/0003-of-0008.json    which parts these are, and the SHA-256; written last

A checkpoint is complete when each rank's .json is there, so the ranks need not tell each other that they have
written. Nothing is unpickled that could run code: the .pt is read as data alone.
"""

from __future__ import annotations

import json
import math
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..job.failure import TrainError
from ..job.values import decoded
from .files import HashingFile, hash_of, sync, sync_folder
from .parts import Box, Part, box_of, local

INDEX_AT_MOST = 64 << 20  # bytes of a rank's .json
NAME = re.compile(r"(\d{4,})-of-(\d{4,})\.json")


class Unfit(Exception):
    """Why a checkpoint cannot be used for this model."""


@dataclass(frozen=True, slots=True)
class Index:
    """What a rank's .json says: the SHA-256 of its .pt, and the parts there, in order."""

    sha256: str
    parts: list[Part]


def write(folder: Path, rank: int, ranks: int, parts: list[Part], contents: dict[str, Any]) -> None:
    """Write the files of a rank; raises OSError. The .json appears by a rename, once all is on the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{rank:04d}-of-{ranks:04d}.pt"
    with path.open("wb") as raw:
        file = HashingFile(raw)
        try:
            torch.save(contents, file)  # type: ignore[arg-type]  # it needs write and flush, no more
        except RuntimeError as error:  # torch's, in place of that of its file
            raise (file.error or error) from None
        sync(raw)
    beside = path.with_suffix(".new")
    with beside.open("wb") as record:
        record.write(json.dumps(asdict(Index(file.digest, parts))).encode())
        sync(record)
    beside.rename(path.with_suffix(".json"))
    sync_folder(folder)


def is_complete(folder: Path) -> bool:
    """Whether every rank has written its files."""
    return bool(indices(folder))


def indices(folder: Path) -> list[Path]:
    """Return the .json of each rank, in rank order; none if one is missing."""
    found = sorted(path for path in folder.glob("*.json") if NAME.fullmatch(path.name))
    if not found:
        return []
    ranks = int(found[0].stem.partition("-of-")[2])
    expected = [folder / f"{rank:04d}-of-{ranks:04d}.json" for rank in range(min(ranks, len(found) + 1))]
    return found if found == expected else []


def read_index(path: Path) -> Index:
    """Read a rank's .json; raises Unfit."""
    try:
        with path.open("rb") as file:
            text = file.read(INDEX_AT_MOST + 1)
        if len(text) > INDEX_AT_MOST:
            raise Unfit(f"{path.name} has more than {INDEX_AT_MOST} bytes")
        index: Index = decoded(text, Index, path.name)
    except OSError as error:
        raise Unfit(f"{path.name}: {error.strerror}") from error
    except TrainError as error:
        raise Unfit(str(error).partition("\n")[0]) from None
    for part in index.parts:
        box = part.box
        fits = len(box.offset) == len(box.shape) == len(box.whole)
        if not fits or any(
            at < 0 or length < 0 or at + length > wide
            for at, length, wide in zip(box.offset, box.shape, box.whole, strict=True)
        ):
            raise Unfit(f"{path.name}: a part of {part.name} lies outside of it")
    return index


def verify(path: Path, index: Index) -> None:
    """Raise Unfit if a rank's .pt does not have the bytes that it wrote."""
    try:
        with path.with_suffix(".pt").open("rb") as file:
            digest = hash_of(file)
    except OSError as error:
        raise Unfit(f"{path.stem}.pt: {error.strerror}") from error
    if digest != index.sha256:
        raise Unfit(f"{path.stem}.pt does not have the checksum in {path.name}")


def check(wanted: Mapping[str, Any], every: Sequence[Index]) -> None:
    """Raise Unfit if the files lack a part of what this rank needs, or are of another model."""
    parts: dict[str, list[Box]] = {}
    for index in every:
        for part in index.parts:
            parts.setdefault(part.name, []).append(part.box)
    for name, leaf in wanted.items():
        if not isinstance(leaf, torch.Tensor):
            continue
        box, there = box_of(leaf), parts.get(name, [])
        if other := [each.whole for each in there if each.whole != box.whole]:
            raise Unfit(f"{name} has the size {other[0]} there and {box.whole} here")
        found = 0
        for each in there:
            if (both := box.common(each)) is not None:
                found += math.prod(piece.stop - piece.start for piece in both[0])
        if found != box.size:
            raise Unfit(f"{name} is not there" if not there else f"{name} is not there as a whole")


def fill(wanted: Mapping[str, Any], files: Sequence[Path], every: Sequence[Index]) -> dict[str, Any]:
    """Copy what this rank needs into the tensors of `wanted`; returns its other values, as rank 0 wrote them.

    Raises Unfit. The files are mapped: only the pages are read that are needed.
    """
    values: dict[str, Any] = {}
    for number, (path, index) in enumerate(zip(files, every, strict=True)):
        contents = _read(path.with_suffix(".pt"))
        tensors = contents["tensors"]
        values = contents["values"] if number == 0 else values
        if [list(tensor.shape) for tensor in tensors] != [part.box.shape for part in index.parts]:
            raise Unfit(f"{path.stem}.pt does not have the parts that {path.name} lists")
        for part, tensor in zip(index.parts, tensors, strict=True):
            leaf = wanted.get(part.name)
            if isinstance(leaf, torch.Tensor) and (both := box_of(leaf).common(part.box)) is not None:
                with torch.no_grad():
                    local(leaf)[both[0]].copy_(tensor[both[1]])
    for name, leaf in wanted.items():
        if not isinstance(leaf, torch.Tensor) and name not in values:
            raise Unfit(f"{name} is not there")
    return values


def _read(path: Path) -> dict[str, Any]:
    try:
        contents = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        tensors, _ = contents["tensors"], contents["values"]
        if all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            return dict(contents)
    except OSError as error:
        raise Unfit(f"{path.name}: {error.strerror}") from error
    except (RuntimeError, EOFError, pickle.UnpicklingError, KeyError, TypeError) as error:
        raise Unfit(f"{path.name} is no part of a checkpoint: {_first_line(error)}") from error
    raise Unfit(f"{path.name} is no part of a checkpoint")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
