"""The messages of a group that are under way."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import torch

from . import profiling
from .exceptions import MpiBackendError, TimedOutError
from .library import MPI
from .point_to_point import MessageWork, Receiving, Route, Sending

_NAP = 0.001  # seconds between two looks at the messages whose futures are not resolved


class Messages:
    """Keeps each message until it is complete: MPI uses its memory even if its work handle is dropped."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        """Also that of order.py, whose collectives cannot meet one of the group here."""
        self._route = Route(comm, self._resolve_later)
        self._under_way: dict[MessageWork, None] = {}  # in the order in which they began
        self._prune_at = 64
        self._unresolved: list[MessageWork] = []
        self._lock = threading.Lock()

    def send(self, tensor: torch.Tensor, to: int, tag: int, seconds: float) -> MessageWork:
        """Start to send `tensor` to rank `to`; `seconds` is the time-out of the work handle."""
        return self._keep(Sending(self._route, tensor, to, tag, seconds), "send")

    def receive(self, tensor: torch.Tensor, source: int | None, tag: int, seconds: float) -> MessageWork:
        """Start to receive into `tensor` from rank `source`; None: from whichever rank sends first."""
        name = "recv" if source is not None else "recvAnySource"
        return self._keep(Receiving(self._route, tensor, source, tag, seconds), name)

    def free(self) -> None:
        """Free the communicator, when nothing is under way on it."""
        self._route.comm.Free()

    def finish(self) -> None:
        """Complete what is under way; raises TimedOutError.

        What else went wrong with a message is raised by its own work handle.
        """
        for message in list(self._under_way):
            with suppress(MpiBackendError):
                message.wait()
            if not message.poll():
                raise TimedOutError(f"{message.what} is still under way")

    def _keep(self, message: MessageWork, name: str) -> MessageWork:
        end_event = profiling.event(name, [message.tensor])

        def when_done() -> None:
            self._under_way.pop(message, None)
            if end_event is not None:
                end_event()

        message.when_done = when_done
        self._under_way[message] = None
        if len(self._under_way) >= self._prune_at:  # some may be done, but nobody has asked for them
            for each in list(self._under_way):
                each.poll()
            self._prune_at = max(64, 2 * len(self._under_way))
        return message

    def _resolve_later(self, message: MessageWork) -> None:
        """Have a thread poll `message` and resolve its future; the thread ends with the last such message."""
        with self._lock:
            self._unresolved.append(message)
            if len(self._unresolved) == 1:
                threading.Thread(target=self._resolve, name="mpi messages", daemon=True).start()

    def _resolve(self) -> None:
        while True:
            for message in list(self._unresolved):
                if message.poll():
                    message.resolve()
                elif time.monotonic() > message.deadline:
                    message.time_out()
                else:
                    continue
                with self._lock:
                    self._unresolved.remove(message)
                    if not self._unresolved:
                        return
            time.sleep(_NAP)
