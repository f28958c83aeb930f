"""send and recv, on a communicator of their own, so that no tag can meet a collective's message."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.distributed_c10d import Work

from ..job.mpi_world import MPI
from .buffers import bring_back, land, message, pieces
from .errors import MpiBackendError, TimedOutError
from .progress import complete


class MessageWork(Work):
    """A message under way; `what` names it in errors, such as "recv from rank 1"."""

    def __init__(self, what: str, tensor: torch.Tensor, flat: torch.Tensor, seconds: float) -> None:
        super().__init__()
        self.what, self.tensor, self.seconds = what, tensor, seconds
        self.when_done: Callable[[], None] | None = None
        self._flat = flat
        self._parts = list(pieces(flat))
        self._requests: list[MPI.Request] = []
        self._error: BaseException | None = None
        self._done = False

    def is_completed(self) -> bool:
        if not self._done and all(request.Get_status() for request in self._requests):
            self.wait()
        return self._done

    def is_success(self) -> bool:
        return self._done and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Return when the message is complete; raises MpiBackendError, or TimedOutError if it is not."""
        if not self._done:
            try:
                self._complete(timeout.total_seconds() or self.seconds)
            except TimedOutError:
                raise
            except (MPI.Exception, MpiBackendError) as error:
                self._error = MpiBackendError(f"{self.what}: {error}")
            self._done = True
            if self.when_done is not None:
                self.when_done()
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return [self.tensor]

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future that is complete: messages have no thread of their own, so this waits."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self.result())
        return future

    def _complete(self, seconds: float) -> None:
        for request in self._requests:
            complete(request, seconds, self.what)


class Sending(MessageWork):
    """`send` and `isend`."""

    def __init__(self, comm: MPI.Intracomm, tensor: torch.Tensor, to: int, tag: int, seconds: float) -> None:
        super().__init__(f"send to rank {to}", tensor, land(tensor), seconds)
        self._requests = [comm.Isend(message(part), to, tag) for part in self._parts]


class Receiving(MessageWork):
    """`recv` and `irecv`; with `source` None, from whoever sends first."""

    def __init__(
        self, comm: MPI.Intracomm, tensor: torch.Tensor, source: int | None, tag: int, seconds: float
    ) -> None:
        where = "any rank" if source is None else f"rank {source}"
        super().__init__(f"recv from {where}", tensor, land(tensor, filled=False), seconds)
        self._comm, self._source, self._tag = comm, source, tag
        self._post()

    def _post(self) -> None:
        """Wait for all parts from a rank that is known; else for the first, which will tell."""
        parts = self._parts[len(self._requests) :]
        if self._source is None:
            self._requests = [self._comm.Irecv(message(parts[0]), MPI.ANY_SOURCE, self._tag)]
        else:
            self._requests += [self._comm.Irecv(message(part), self._source, self._tag) for part in parts]

    def _complete(self, seconds: float) -> None:
        for number, part in enumerate(self._parts):
            status = complete(self._requests[number], seconds, self.what)
            if self._source is None:
                self._source = status.Get_source()
                self._post()
            received = status.Get_count(MPI.BYTE)
            if received != part.nbytes:
                raise MpiBackendError(
                    f"rank {self._source} sent {received} bytes where {part.nbytes} were expected"
                )
        bring_back(self.tensor, self._flat)

    def source_rank(self) -> int:
        self.wait()
        return -1 if self._source is None else self._source

    _source_rank = source_rank
