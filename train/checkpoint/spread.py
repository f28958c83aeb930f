"""Sends files from host to host, in pieces: along a chain, or between two ranks while the training goes on.

Each host of a chain passes a piece on as soon as it has it, so a chain of any length takes about as long as
one copy, and no host sends more than one copy. Only send and recv are needed, which every backend has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from ..job.failure import TrainError
from ..job.group import Job
from . import files, shards
from .core import Disks, Found
from .files import STATE, new_checkpoint

PIECE = 16 << 20  # bytes; a host holds one piece in memory
FAILED = -1
"""The size that a rank announces that could not write its files."""
PATIENCE = timedelta(days=1)
"""How long a rank waits for a piece: the sender's disk may be slow, and a dead rank breaks its connection."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A process group to send bytes through, by way of `device`; None is the default group."""

    device: torch.device
    group: dist.ProcessGroup | None = None

    def send(self, data: torch.Tensor, to: int) -> None:
        dist.send(data.to(self.device), dst=to, group=self.group)

    def receive(self, size: int, source: int) -> torch.Tensor:
        data = torch.empty(size, dtype=torch.uint8, device=self.device)
        dist.recv(data, src=source, group=self.group)
        return data.cpu()


def spread(group: Job, found: Found, chain: Sequence[int], path: Path | None, folder: Path) -> None:
    """Copy the checkpoint at `path` of the first rank of `chain` into `folder` of the others.

    Ranks that are not in `chain` need not call it. Raises TrainError if what arrives is not what was sent.
    """
    file_there = path / STATE if path else None
    pieces = along(Lane(group.device), chain, group.rank, file_there, found.size)
    if group.rank == chain[0]:
        for _ in pieces:
            pass
        return
    with new_checkpoint(folder, found.step) as file:
        for piece in pieces:
            file.write(piece.numpy().tobytes())
        if file.sha256.hexdigest() != found.save:
            raise TrainError(
                f"the checkpoint of step {found.step} arrived damaged on {group.hosts[group.rank]}"
            )


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


@dataclass(frozen=True, slots=True)
class Copies:
    """Sends this rank's files to its neighbour, and takes those of the ranks whose neighbour it is."""

    disks: Disks
    rank: int
    lane: Lane

    @classmethod
    def of(cls, group: Job, disks: Disks) -> Copies:
        """Open a lane beside the training's own collectives; every rank must call it."""
        if len(disks.every) == 1:
            return cls(disks, group.rank, Lane(group.device))
        backend = "gloo" if group.device.type != "cpu" else None  # None: that of the job
        beside = dist.new_group(backend=backend, timeout=PATIENCE)
        return cls(disks, group.rank, Lane(torch.device("cpu"), beside))

    def exchange(self, path: Path | None, folder: Path) -> None:
        """Copy the files at `path`, None if they could not be written, and take those of others to `folder`.

        Sending and taking happen at once, in threads, so that no ring of ranks waits for itself. Raises
        OSError, Unfit, or what torch raises where another rank is gone.
        """
        neighbour, senders = self.disks.neighbour(self.rank), self.disks.senders(self.rank)
        if neighbour is None:
            return
        with ThreadPoolExecutor(2, "copies") as threads:
            sending = threads.submit(self._send, path, neighbour)
            taking = threads.submit(self._take, senders, folder)
        sending.result()
        taking.result()

    def _send(self, path: Path | None, to: int) -> None:
        index, text = None, b""
        try:
            if path is not None:
                index = shards.read_index(path)
                text = shards.encoded(index)
        finally:  # the neighbour would wait for as much as a malformed list announces
            self.lane.send(torch.tensor([len(text) or FAILED]).view(torch.uint8), to)
        if path is None or index is None:
            return
        self.lane.send(torch.frombuffer(bytearray(text), dtype=torch.uint8), to)
        for piece in from_disk(path.with_suffix(".pt"), index.size):
            self.lane.send(piece, to)

    def _take(self, senders: list[int], folder: Path) -> None:
        ranks, wrong = len(self.disks.of_rank), list[Exception]()
        for sender in senders:
            try:
                self._take_from(sender, folder / shards.name_of(sender, ranks))
            except (OSError, files.Unfit) as error:  # the files of the others are taken all the same
                wrong.append(error)
        if wrong:
            raise wrong[0]

    def _take_from(self, sender: int, path: Path) -> None:
        size = int(self.lane.receive(8, sender).view(torch.int64))
        if size == FAILED:
            return
        if not 0 < size <= shards.INDEX_AT_MOST:
            raise files.Unfit(f"rank {sender} announces a list of {size} bytes")
        text = self.lane.receive(size, sender).numpy().tobytes()
        index = shards.checked_index(text, f"rank {sender}")
        shards.write_received(path, index, received(self.lane, index.size, sender))
