"""The copy of a rank's files on another disk, made in the background while the training goes on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from ..job.group import Group
from . import shards
from .disks import Disks
from .spread import Lane, from_disk, received

FAILED = -1
"""The size that a rank announces that could not write its files."""
PATIENCE = timedelta(days=1)
"""How long a rank waits for a piece: the sender's disk may be slow, and a dead rank breaks its connection."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Sends this rank's files to its neighbour, and takes those of the ranks whose neighbour it is."""

    disks: Disks
    rank: int
    lane: Lane

    @classmethod
    def of(cls, group: Group, disks: Disks) -> Copies:
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
            except (OSError, shards.Unfit) as error:  # the files of the others are taken all the same
                wrong.append(error)
        if wrong:
            raise wrong[0]

    def _take_from(self, sender: int, path: Path) -> None:
        size = int(self.lane.receive(8, sender).view(torch.int64))
        if size == FAILED:
            return
        if not 0 < size <= shards.INDEX_AT_MOST:
            raise shards.Unfit(f"rank {sender} announces a list of {size} bytes")
        text = self.lane.receive(size, sender).numpy().tobytes()
        index = shards.checked_index(text, f"rank {sender}")
        shards.write_received(path, index, received(self.lane, index.size, sender))
