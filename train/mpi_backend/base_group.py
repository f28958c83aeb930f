"""The process group without its collectives: identity, time-out, the start of a collective, the end."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch._C._distributed_c10d import DebugLevel, ProcessGroup, Work, get_debug_level

from . import agreement, caller, order, profiling, recording
from .exceptions import MpiBackendError
from .library import MPI
from .messages import Messages
from .monitored import MonitoredBarrier
from .plain import Ranks
from .point_to_point import MessageWork
from .presence import Presence
from .reduction import Reduction
from .streams import stream_event
from .watchdog import watchdog
from .watched import Watched
from .work import Coalesced, CollectiveWork, Finished
from .work_queue import WorkQueue

Tensors = Sequence[torch.Tensor]
Kept = CollectiveWork | MessageWork | Coalesced

_NONE = timedelta()


class BaseGroup(ProcessGroup):
    """The ranks of `comm`, which the group frees at its end; `timeout` is of each collective and message."""

    supports_splitting = False  # torch reads these from _get_backend()
    supports_coalescing = False
    supports_time_estimate = False

    def __init__(self, comm: MPI.Intracomm, store: Any, timeout: timedelta, name: str) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm = comm
        self.set_timeout(timeout)
        self._rank, self._size = comm.rank, comm.size  # torch's own methods take a microsecond
        self._ranks = Ranks(comm, comm.rank, comm.size)
        self._name, self._description = name, ""
        self._messages = Messages(comm.Dup())
        self._queue = WorkQueue(name)
        self._coalescing: list[Work] | None = None
        self._finished = Finished()
        self._checks_agreement = get_debug_level() == DebugLevel.DETAIL  # read now, as torch's own groups do
        # torch 2.6 drops the Python part of a Work that C++ still waits for; later versions keep it
        # themselves.
        self._kept: deque[Kept] = deque(maxlen=1024 if torch.__version__ < "2.7" else 0)
        self._store = store
        incarnation = bytearray(secrets.token_bytes(4))
        comm.Bcast(incarnation)  # not `bcast`, which unpickles
        prefix = f"muster_mpi/{incarnation.hex()}"
        self._monitored = MonitoredBarrier(store, f"{prefix}/monitored", comm.rank, comm.size)
        presence = Presence.create(store, prefix, comm.rank, comm.size)
        kept = order.Order(self._messages.comm)
        if comm.size > 1 and not self._checks_agreement:  # which checks each collective, and may go on
            self._queue.notes, self._queue.compare = kept.notes, kept.compare
        watchdog.watch(Watched(self._queue, comm.rank, comm.size, presence, kept))

    # --- identity

    def getBackendName(self) -> str:
        return "mpi"

    def getRank(self) -> int:
        return self._comm.rank

    def getSize(self) -> int:
        return self._comm.size

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = self._queue.name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def _get_backend(self, device: torch.device) -> BaseGroup:
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]  # that torch uses for what is not a tensor: objects, checkpoints

    def get_group_store(self) -> Any:
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout, self._default_seconds = timeout, timeout.total_seconds()

    _set_default_timeout = set_timeout

    # --- the end

    def abort(self) -> None:
        """Start no further collective; those that wait get an error, except one that is inside MPI."""
        self._queue.abort(MpiBackendError("the process group was aborted"))
        watchdog.forget(self._queue)

    def shutdown(self) -> None:
        """Finish what is under way and free the communicators. MPI itself stays initialised."""
        closed = self._queue.close(self._timeout.total_seconds())
        all_leave = watchdog.forget(self._queue)
        if closed and self._queue.broken is None:
            self._messages.finish()
            if all_leave:  # else the comparison that shows it is still under way
                self._messages.free()
                self._comm.Free()

    _shutdown = shutdown

    # --- how a collective starts

    def _ran(
        self,
        name: str,
        inputs: Tensors,
        opts: Any,
        call: Callable[..., tuple[Any, ...] | None],
        *arguments: Any,
    ) -> bool:
        """Run what plain.py makes of a collective, and return True; False if it needs `_start`.

        That is so if the caller does not block, tensors need more, or someone checks or profiles collectives.
        """
        if self._coalescing is not None or self._checks_agreement or not caller.blocks(opts):
            return False
        if profiling.enabled() or (made := call(self._ranks, *arguments)) is None:
            return False
        if notes := recording.recorder():
            made = (made[0], recording.run_recorded, notes, self, name, inputs, *made[1:])
        return self._queue.run_now(name, self._seconds(opts), *made)

    def _start(
        self,
        name: str,
        run: Callable[[], None],
        inputs: Tensors,
        result: Sequence[Any],
        opts: Any,
        *,
        root: int = -1,
        reduction: Reduction | None = None,
        same_size: Tensors = (),
        same_type: Tensors = (),
    ) -> Work:
        """Run a collective if its caller blocks, else queue it.

        All ranks must pass the same `reduction` and `root`, tensors `same_size` of the same dtype and
        shape, and `same_type` of the same dtype. One of these two says which device the collective uses.
        """
        described = (*same_size, *same_type)
        if described and described[0].is_cuda:
            run = _after_stream(run, described[0].device)
        if torch.is_inference_mode_enabled() or any(map(_is_inference, (*described, *result))):
            run = partial(_in_inference_mode, run)
        if self._checks_agreement:
            run = partial(_agreed, run, self._comm, _describe(name, root, reduction, same_size, same_type))
        run = recording.recorded(run, self, name, inputs)
        end, seconds = profiling.event(name, inputs), self._seconds(opts)
        blocks = self._coalescing is None and caller.blocks(opts)
        size = sum(tensor.numel() * tensor.element_size() for tensor in same_size)
        number = order.note(name, size, max(root, 0), reduction.number if reduction else 0)
        if blocks and end is None and self._queue.run_now(name, seconds, number, run):
            return self._finished
        work = CollectiveWork(self._queue.finish, name, run, result, seconds, number, end)
        self._queue.add(work, blocks=blocks)
        return self._keep(work)

    def _seconds(self, opts: Any) -> float:
        given = getattr(opts, "timeout", None)
        # torch writes "not given" as -1 ms.
        return self._default_seconds if given is None or given <= _NONE else given.total_seconds()

    def _keep(self, work: Kept) -> Work:
        while self._kept and self._kept[0].settled:  # else its tensors would live for 1024 collectives
            self._kept.popleft()
        self._kept.append(work)
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work


def _describe(
    name: str, root: int, reduction: Reduction | None, same_size: Tensors, same_type: Tensors
) -> str:
    """Return the text that must be equal on all ranks: "all_reduce SUM float32[6, 5]"."""
    tensors = [f"{_type(tensor)}{list(tensor.shape)}" for tensor in same_size]
    tensors += [_type(tensor) for tensor in same_type]
    words = [name, reduction.name if reduction else "", f"root {root}" if root >= 0 else ""]
    return " ".join(filter(None, [*words, ", ".join(tensors)]))


def _type(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _is_inference(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.is_inference()


def _in_inference_mode(run: Callable[[], None]) -> None:
    """Run in any thread: each has its own mode, and tensors made in inference mode change only there."""
    with torch.inference_mode():
        run()


def _agreed(run: Callable[[], None], comm: MPI.Intracomm, description: str) -> None:
    agreement.check(comm, description)
    run()


def _after_stream(run: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Return `run`, to be called in any thread: it waits for the caller's stream, and completes its own.

    Another thread has another current device and stream, so it takes the caller's device first.
    """
    ready = stream_event(device)

    def run_on_device() -> None:
        with torch.cuda.device(device):
            ready.synchronize()
            run()
            torch.cuda.current_stream(device).synchronize()

    return run_on_device
