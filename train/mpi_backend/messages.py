"""The messages of a group that are under way."""

from __future__ import annotations

import torch

from ..job.mpi_world import MPI
from . import profiling
from .point_to_point import MessageWork, Receiving, Sending


class Messages:
    """Keeps each message until it is complete: MPI reads and writes its memory, whoever forgets the Work."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._under_way: list[MessageWork] = []
        self._look_at = 64

    def send(self, tensor: torch.Tensor, to: int, tag: int, seconds: float) -> MessageWork:
        return self._keep(Sending(self._comm, tensor, to, tag, seconds), "send")

    def receive(self, tensor: torch.Tensor, source: int | None, tag: int, seconds: float) -> MessageWork:
        name = "recv" if source is not None else "recvAnySource"
        return self._keep(Receiving(self._comm, tensor, source, tag, seconds), name)

    def close(self) -> None:
        """Complete what is under way, and give the communicator back."""
        for message in self._under_way:
            if not message.is_completed():
                message.wait()
        self._comm.Free()

    def _keep(self, message: MessageWork, name: str) -> MessageWork:
        message.when_done = profiling.event(name, [message.tensor])
        self._under_way.append(message)
        if len(self._under_way) >= self._look_at:
            self._under_way = [one for one in self._under_way if not one.is_completed()]
            self._look_at = max(64, 2 * len(self._under_way))
        return message
