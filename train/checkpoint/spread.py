"""Copies a checkpoint to the hosts that lack it: in pieces, from host to host, along a chain.

Each host passes a piece on as soon as it has it, so a chain of any length takes about as long as one copy,
and no host sends more than one copy. Only send and recv are needed, which every backend has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from ..job.failure import TrainError
from ..job.group import Group
from .agree import Agreement
from .files import STATE, new_checkpoint

PIECE = 16 << 20  # bytes; a host holds one piece in memory


def spread(group: Group, agreement: Agreement, chain: Sequence[int], path: Path | None, folder: Path) -> None:
    """Copy the checkpoint at `path` of the first rank of `chain` into `folder` of the others.

    Ranks that are not in `chain` need not call it. Raises TrainError if what arrives is not what was sent.
    """
    place = chain.index(group.rank)
    following = chain[place + 1] if place + 1 < len(chain) else None
    if place == 0:
        assert path is not None  # noqa: S101 - the source of an agreement has it
        for piece in _from_disk(path / STATE):
            _pass_on(group, piece, following)
        return
    with new_checkpoint(folder, agreement.step) as file:
        for piece in _received(group, agreement.size, chain[place - 1]):
            _pass_on(group, piece, following)
            file.write(piece.numpy().tobytes())
        if file.digest != agreement.digest:
            raise TrainError(f"the checkpoint of step {agreement.step} arrived damaged on {_host(group)}")


def _from_disk(path: Path) -> Iterator[torch.Tensor]:
    with path.open("rb") as file:
        while data := file.read(PIECE):
            yield torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _received(group: Group, size: int, source: int) -> Iterator[torch.Tensor]:
    for start in range(0, size, PIECE):
        piece = torch.empty(min(PIECE, size - start), dtype=torch.uint8, device=group.device)
        dist.recv(piece, src=source)
        yield piece.cpu()


def _pass_on(group: Group, piece: torch.Tensor, following: int | None) -> None:
    if following is not None:
        dist.send(piece.to(group.device), dst=following)


def _host(group: Group) -> str:
    return group.hosts[group.rank]
