"""send and recv, on a communicator of their own, so that their tags cannot meet a collective's messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.distributed_c10d import Work

from . import recording
from .buffers import bytes_received, gpus_of, message, pieces, stage_in, stage_out, stream_event
from .caller import uncompiled
from .exceptions import MpiBackendError, TimedOutError
from .library import MPI, in_use, wait_until


@uncompiled
class MessageWork(Work):
    """A message under way; `what` names it in errors, such as "recv from rank 1"."""

    def __init__(
        self, group: Messages, what: str, tensor: torch.Tensor, flat: torch.Tensor, seconds: float
    ) -> None:
        super().__init__()
        self.what, self.tensor, self.seconds = what, tensor, seconds
        self.when_done: Callable[[], None] | None = None
        self.settled = False  # whether the waiting caller has received the result or error
        self.deadline = time.monotonic() + seconds  # for the future
        self._group = group
        self._flat = flat
        self._parts = list(pieces(flat))
        self._requests: list[MPI.Request] = []
        self._error: BaseException | None = None
        self._done = False
        self._future: torch.futures.Future[Any] | None = None
        self._resolved = False
        self._lock = threading.RLock()  # a caller and the thread of the futures may poll at once

    def poll(self) -> bool:
        """Return whether the message is complete; only `wait` and the future say what went wrong."""
        with self._lock:
            if not self._done:
                try:
                    self._done = self._progress()
                except RuntimeError as error:  # MPI's, ours, or CUDA's
                    self._error, self._done = MpiBackendError(f"{self.what}: {error}"), True
                    self._cancel()
                if self._done and self.when_done is not None:
                    when_done, self.when_done = self.when_done, None  # it refers to this message
                    when_done()
            return self._done

    is_completed = poll

    def is_success(self) -> bool:
        return self._done and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Return when the message is complete; raises MpiBackendError, or TimedOutError if it is not."""
        wait_until(self.poll, timeout.total_seconds() or self.seconds, self.what)
        self.resolve()
        self.settled = True
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return [self.tensor]

    def get_future(self) -> torch.futures.Future[Any]:
        with self._lock:
            if self._future is not None:
                return self._future
            self._future = torch.futures.Future(devices=gpus_of([self.tensor]))
        if self.poll():
            self.resolve()
        else:
            self._group.resolve_later(self)
        return self._future

    def resolve(self, error: BaseException | None = None) -> None:
        """Resolve the future, if there is one, with the outcome, or with `error` if there is none yet."""
        with self._lock:
            if self._future is None or self._resolved:
                return
            self._resolved = True
        error = self._error or error
        if error is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result([self.tensor])

    def _progress(self) -> bool:
        while self._requests:
            if not self._requests[0].Test():
                return False
            self._requests.pop(0)
        return True

    def _cancel(self) -> None:
        """Give up the parts that are still under way; MPI cannot take back what is sent."""


class Sending(MessageWork):
    """`send` and `isend`."""

    def __init__(self, group: Messages, tensor: torch.Tensor, to: int, tag: int, seconds: float) -> None:
        super().__init__(group, f"send to rank {to}", tensor, stage_in(tensor), seconds)
        self._requests = [group.comm.Isend(message(part), to, tag) for part in self._parts]


class Receiving(MessageWork):
    """`recv` and `irecv`; with `source` None, from whichever rank sends first."""

    def __init__(
        self, group: Messages, tensor: torch.Tensor, source: int | None, tag: int, seconds: float
    ) -> None:
        where = "any rank" if source is None else f"rank {source}"
        super().__init__(group, f"recv from {where}", tensor, stage_in(tensor, filled=False), seconds)
        self._source, self._tag = source, tag
        self._status = MPI.Status()
        self._complete = 0  # parts
        # What the caller has queued may still use the memory; another stream may copy into it.
        self._ready = stream_event(tensor.device) if tensor.is_cuda else None
        # From any rank only the first part is asked for: its sender is the source of the rest.
        self._post(self._parts if source is not None else self._parts[:1])

    def _post(self, parts: list[torch.Tensor]) -> None:
        source = MPI.ANY_SOURCE if self._source is None else self._source
        self._requests += [self._group.comm.Irecv(message(part), source, self._tag) for part in parts]

    def _progress(self) -> bool:
        while self._complete < len(self._parts):
            if not self._requests[0].Test(self._status):
                return False
            self._requests.pop(0)
            if self._source is None:
                self._source = self._status.Get_source()
                self._post(self._parts[1:])
            expected, received = self._parts[self._complete].nbytes, bytes_received(self._status)
            if received != expected:
                raise MpiBackendError(
                    f"rank {self._source} sent {received} bytes where {expected} were expected"
                )
            self._complete += 1
        if self._ready is not None and not self._ready.query():
            return False
        with torch.inference_mode(self.tensor.is_inference()):  # this thread may have another mode
            stage_out(self.tensor, self._flat)
        if self.tensor.is_cuda:  # torch copies to memory with gaps in two steps, and waits for the first
            torch.cuda.current_stream(self.tensor.device).synchronize()
        return True

    def _cancel(self) -> None:
        for request in self._requests:
            if request != MPI.REQUEST_NULL:
                request.Cancel()
                with suppress(MPI.Exception):  # it may have arrived, and be too long as well
                    request.Wait()

    def source_rank(self) -> int:
        self.wait()
        return -1 if self._source is None else self._source

    _source_rank = source_rank


_NAP = 0.001  # seconds between two looks at the messages whose futures are not resolved


class Messages:
    """Keeps each message until it is complete: MPI uses its memory even if handle and group are dropped."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        """Also that of order.py, whose collectives cannot meet one of the group here."""
        self._under_way: dict[MessageWork, None] = {}  # in the order in which they began
        in_use.append(self._under_way)
        self._prune_at = 64
        self._unresolved: list[MessageWork] = []
        self._lock = threading.Lock()

    def send(self, tensor: torch.Tensor, to: int, tag: int, seconds: float) -> MessageWork:
        """Start to send `tensor` to rank `to`; `seconds` is the time-out of the work handle."""
        return self._keep(Sending(self, tensor, to, tag, seconds), "send")

    def receive(self, tensor: torch.Tensor, source: int | None, tag: int, seconds: float) -> MessageWork:
        """Start to receive into `tensor` from rank `source`; None: from whichever rank sends first."""
        name = "recv" if source is not None else "recvAnySource"
        return self._keep(Receiving(self, tensor, source, tag, seconds), name)

    def finish(self) -> None:
        """Complete what is under way; raises TimedOutError.

        What else went wrong with a message is raised by its own work handle.
        """
        for work in list(self._under_way):
            with suppress(MpiBackendError):
                work.wait()
            if not work.poll():
                raise TimedOutError(f"{work.what} is still under way")

    def _keep(self, work: MessageWork, name: str) -> MessageWork:
        end_event = recording.event(name, [work.tensor])

        def when_done() -> None:
            self._under_way.pop(work, None)
            if end_event is not None:
                end_event()

        work.when_done = when_done
        self._under_way[work] = None
        if len(self._under_way) >= self._prune_at:  # some may be done, but nobody has asked for them
            for each in list(self._under_way):
                each.poll()
            self._prune_at = max(64, 2 * len(self._under_way))
        return work

    def resolve_later(self, work: MessageWork) -> None:
        """Have a thread poll `work` and resolve its future; the thread ends with the last such message."""
        with self._lock:
            self._unresolved.append(work)
            if len(self._unresolved) == 1:
                threading.Thread(target=self._resolve, name="mpi messages", daemon=True).start()

    def _resolve(self) -> None:
        while True:
            for work in list(self._unresolved):
                if work.poll():
                    work.resolve()
                elif time.monotonic() > work.deadline:
                    # The message stays under way.
                    work.resolve(TimedOutError(f"{work.what} has Timed out after {work.seconds:g} s"))
                else:
                    continue
                with self._lock:
                    self._unresolved.remove(work)
                    if not self._unresolved:
                        return
            time.sleep(_NAP)
