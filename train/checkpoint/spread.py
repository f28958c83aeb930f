"""Sends files from host to host, in pieces: along a chain, or between two ranks while the training goes on.

Each host of a chain passes a piece on as soon as it has it, so a chain of any length takes about as long as
one copy, and no host sends more than one copy. Only send and recv are needed, which every backend has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from ..job.failure import TrainError
from ..job.group import Group
from .agree import Agreement
from .files import STATE, new_checkpoint

PIECE = 16 << 20  # bytes; a host holds one piece in memory


@dataclass(frozen=True, slots=True)
class Lane:
    """A process group to send bytes through, by way of `device`; None is the default group."""

    device: torch.device
    group: dist.ProcessGroup | None = None

    def send(self, data: torch.Tensor, to: int) -> None:
        """Send a tensor of bytes to rank `to`."""
        dist.send(data.to(self.device), dst=to, group=self.group)

    def receive(self, size: int, source: int) -> torch.Tensor:
        """Return `size` bytes from rank `source`, in host memory."""
        data = torch.empty(size, dtype=torch.uint8, device=self.device)
        dist.recv(data, src=source, group=self.group)
        return data.cpu()


def spread(group: Group, agreement: Agreement, chain: Sequence[int], path: Path | None, folder: Path) -> None:
    """Copy the checkpoint at `path` of the first rank of `chain` into `folder` of the others.

    Ranks that are not in `chain` need not call it. Raises TrainError if what arrives is not what was sent.
    """
    file_there = path / STATE if path else None
    pieces = along(Lane(group.device), chain, group.rank, file_there, agreement.size)
    if group.rank == chain[0]:
        for _ in pieces:
            pass
        return
    with new_checkpoint(folder, agreement.step) as file:
        for piece in pieces:
            file.write(piece.numpy().tobytes())
        if file.digest != agreement.digest:
            raise TrainError(f"the checkpoint of step {agreement.step} arrived damaged on {_host(group)}")


def along(
    lane: Lane, chain: Sequence[int], rank: int, path: Path | None, size: int
) -> Iterator[torch.Tensor]:
    """Yield the pieces of a file of `size` bytes as they pass `rank` of `chain`.

    The first rank of the chain reads them from `path`, which the others need not have.
    """
    place = chain.index(rank)
    following = chain[place + 1] if place + 1 < len(chain) else None
    if place == 0:
        assert path is not None  # noqa: S101 - the first of a chain has the file
    pieces = from_disk(path, size) if place == 0 and path else received(lane, size, chain[place - 1])
    for piece in pieces:
        if following is not None:
            lane.send(piece, following)
        yield piece


def from_disk(path: Path, size: int) -> Iterator[torch.Tensor]:
    """Yield the pieces of a file of `size` bytes; raises OSError after the last if it cannot be read.

    In place of bytes that cannot be read there are zeros: the receiver waits for as many pieces, and finds
    that the checksum is wrong.
    """
    with contextlib.ExitStack() as stack:
        file, wrong = None, None
        for length in lengths(size):
            data = b""
            try:
                file = file or stack.enter_context(path.open("rb"))
                data = file.read(length) if wrong is None else b""
            except OSError as error:
                wrong = error
            yield torch.frombuffer(bytearray(data.ljust(length, b"\0")), dtype=torch.uint8)
        if wrong is not None:
            raise wrong


def received(lane: Lane, size: int, source: int) -> Iterator[torch.Tensor]:
    """Yield the pieces of a file of `size` bytes that rank `source` sends."""
    for length in lengths(size):
        yield lane.receive(length, source)


def lengths(size: int) -> Iterator[int]:
    """Yield the lengths of the pieces of a file."""
    for start in range(0, size, PIECE):
        yield min(PIECE, size - start)


def _host(group: Group) -> str:
    return group.hosts[group.rank]
