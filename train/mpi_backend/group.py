"""The process group: every method that torch.distributed calls, under the names of torch 2.6 to 2.15.

Signatures are those of torch/csrc/distributed/c10d/ProcessGroup.hpp: lists of lists, because a process once
had several GPUs. A method hands over what is to be done; lane.py says when and in which thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import DebugLevel, PrefixStore, ProcessGroup, Work, get_debug_level

from ..job.mpi_world import MPI
from . import agreement, caller, collectives, exchange, profiling, sparse
from .board import Board
from .errors import MpiBackendError
from .lane import Lane
from .messages import Messages
from .progress import complete
from .reduction import Reduction
from .watchdog import watchdog
from .work import CollectiveWork, Finished, Together

Tensors = Sequence[torch.Tensor]

_NONE = timedelta()


class MpiProcessGroup(ProcessGroup):
    """The ranks of `comm`, which becomes the group's own; `timeout` holds for each collective and message."""

    supports_splitting = False  # what torch asks of _get_backend()
    supports_coalescing = False
    supports_time_estimate = False

    def __init__(self, comm: MPI.Intracomm, store: Any, timeout: timedelta, name: str) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm, self._timeout = comm, timeout
        self._name, self._description = name, ""
        self._messages = Messages(comm.Dup())
        self._lane = Lane(name)
        self._coalescing: list[Work] | None = None
        self._finished = Finished()
        self._wants_agreement = get_debug_level() == DebugLevel.DETAIL  # now, as torch's own groups
        # torch 2.6 forgets the Python part of a Work that C++ still waits for; later ones hold it themselves.
        self._kept: deque[Work] = deque(maxlen=1024 if torch.__version__ < "2.7" else 0)
        self._store = store
        watchdog.watch(self._lane, comm.rank, Board.on(store, comm.rank, comm.size))

    # --- what torch wants to know

    def getBackendName(self) -> str:
        return "mpi"

    def getRank(self) -> int:
        return self._comm.rank

    def getSize(self) -> int:
        return self._comm.size

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = self._lane.name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def _get_backend(self, device: torch.device) -> MpiProcessGroup:
        return self

    def get_group_store(self) -> Any:
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    _set_default_timeout = set_timeout

    # --- collectives

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        run = partial(_each, tensors, partial(collectives.broadcast, self._comm, root=opts.rootRank))
        return self._start("broadcast", run, tensors, tensors, opts, f"root {opts.rootRank}")

    def allreduce(self, tensors: Tensors | torch.Tensor, opts: Any = None) -> Work:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        opts = opts or dist.AllreduceOptions()
        if tensors[0].is_sparse:
            of_each = partial(_each, tensors, partial(sparse.all_reduce, self._comm))
            return self._start("sparse_all_reduce", of_each, (), tensors, opts)
        comm, reduction = self._comm, Reduction.of(opts.reduceOp, tensors[0].dtype)

        def run() -> None:
            for tensor in tensors:
                collectives.all_reduce(comm, tensor, reduction)

        return self._start("all_reduce", run, tensors, tensors, opts, reduction.name)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        opts = opts or dist.AllreduceCoalescedOptions()
        reductions = [Reduction.of(opts.reduceOp, tensor.dtype) for tensor in tensors]

        def run() -> None:
            for tensor, reduction in zip(tensors, reductions, strict=True):
                collectives.all_reduce(self._comm, tensor, reduction)

        return self._start("all_reduce", run, tensors, tensors, opts, opts.reduceOp.op.name)

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        reduction = Reduction.of(opts.reduceOp, tensors[0].dtype)
        one = partial(collectives.reduce, self._comm, reduction=reduction, root=opts.rootRank)
        what = f"{reduction.name}, root {opts.rootRank}"
        return self._start("reduce", partial(_each, tensors, one), tensors, tensors, opts, what)

    def allgather(self, outputs: Sequence[Tensors], tensors: Tensors, opts: Any = None) -> Work:
        run = partial(collectives.all_gather, self._comm, outputs[0], tensors[0])
        return self._start("all_gather", run, tensors, list(outputs[0]), opts, same_size=False)

    def allgather_coalesced(self, outputs: Sequence[Tensors], tensors: Tensors, opts: Any = None) -> Work:
        """`outputs[rank][i]` is for rank's `tensors[i]`."""

        def run() -> None:
            for number, tensor in enumerate(tensors):
                collectives.all_gather(self._comm, [of_rank[number] for of_rank in outputs], tensor)

        return self._start("all_gather", run, tensors, [list(each) for each in outputs], opts)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        run = partial(collectives.all_gather_single, self._comm, output, tensor)
        return self._start("all_gather_into_tensor", run, [tensor], [output], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, tensors: Tensors, opts: Any = None) -> Work:
        run = partial(_pairs, outputs, tensors, partial(collectives.all_gather_single, self._comm))
        return self._start("all_gather_into_tensor", run, tensors, list(outputs), opts)

    def gather(self, outputs: Sequence[Tensors], tensors: Tensors, opts: Any) -> Work:
        mine = list(outputs[0]) if outputs else []
        run = partial(exchange.gather, self._comm, mine, tensors[0], opts.rootRank)
        return self._start("gather", run, tensors, mine, opts, f"root {opts.rootRank}", same_size=False)

    def gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> Work:
        """`output` is only used on the root; its rows are the ranks' tensors, one after the other."""
        parts = output.view(self.size(), -1) if self.rank() == opts.rootRank else ()
        return self.gather([list(parts)], [tensor], opts)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Work:
        parts = list(inputs[0]) if inputs else []
        run = partial(exchange.scatter, self._comm, outputs[0], parts, opts.rootRank)
        return self._start(
            "scatter", run, parts, [outputs[0]], opts, f"root {opts.rootRank}", same_size=False
        )

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Work:
        reduction = Reduction.of(opts.reduceOp, outputs[0].dtype)
        run = partial(collectives.reduce_scatter, self._comm, outputs[0], inputs[0], reduction)
        return self._start("reduce_scatter", run, inputs[0], [outputs[0]], opts, reduction.name)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> Work:
        return self._reduce_scatter([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, tensors: Tensors, opts: Any) -> Work:
        return self._reduce_scatter(outputs, tensors, opts)

    def _reduce_scatter(self, outputs: Tensors, tensors: Tensors, opts: Any) -> Work:
        reduction = Reduction.of(opts.reduceOp, outputs[0].dtype)
        one = partial(collectives.reduce_scatter_single, self._comm, reduction=reduction)
        run = partial(_pairs, outputs, tensors, one)
        return self._start("reduce_scatter_tensor", run, tensors, list(outputs), opts, reduction.name)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        run = partial(exchange.exchange, self._comm, inputs, outputs)
        return self._start("all_to_all", run, inputs, list(outputs), opts, same_size=False)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any = None,
    ) -> Work:
        run = partial(exchange.all_to_all_single, self._comm, output, tensor, output_sizes, input_sizes)
        return self._start("all_to_all", run, [tensor], [output], opts, same_size=False)

    def barrier(self, opts: Any = None) -> Work:
        """Of all collectives, the one whose time-out is an exception: it moves no data, so it can be left."""
        seconds = self._seconds(opts)

        def run() -> None:
            complete(self._comm.Ibarrier(), seconds, "barrier")

        return self._start("barrier", run, (), [], opts)

    # Older names, which torch 2.13 and before call, and some programs after it.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
    gather_into_tensor = gather_single

    # --- messages

    def send(self, tensors: Tensors, to: int, tag: int = 0) -> Work:
        return self._keep(self._messages.send(tensors[0], to, tag, self._timeout.total_seconds()))

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Work:
        return self._keep(self._messages.receive(tensors[0], source, tag, self._timeout.total_seconds()))

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        return self._keep(self._messages.receive(tensors[0], None, tag, self._timeout.total_seconds()))

    # --- several at once, as one Work

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalescing = []

    def _end_coalescing(self, device: torch.device) -> Work:
        works, self._coalescing = self._coalescing or [], None
        return self._keep(Together(works))

    # --- groups of this group, and the end

    def splitGroup(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        devices: Any = None,
    ) -> MpiProcessGroup | None:
        """Return the group of `ranks` of this group, on those; every rank of this group calls it."""
        inside = self.rank() in ranks
        comm: MPI.Intracomm = self._comm.Split(
            0 if inside else MPI.UNDEFINED, list(ranks).index(self.rank()) if inside else 0
        )
        if not inside:
            return None
        name = group_name or f"{self._name}:split"
        store = PrefixStore(f"{name}/", self._store)
        split = MpiProcessGroup(comm, store, timeout or self._timeout, name)
        split.setGroupDesc(group_desc or "")
        return split

    def abort(self) -> None:
        """Begin no further collective; those that wait get an error, except one that is inside MPI."""
        self._lane.abort(MpiBackendError("the process group was aborted"))

    def shutdown(self) -> None:
        """Finish what is under way and give the communicators back. MPI itself goes on: it ends only once."""
        watchdog.forget(self._lane)
        if self._lane.close(self._timeout.total_seconds()) and self._lane.broken is None:
            self._messages.close()
            self._comm.Free()

    _shutdown = shutdown

    # --- how each of these begins

    def _start(
        self,
        name: str,
        run: Callable[[], None],
        inputs: Tensors,
        result: Sequence[Any],
        opts: Any,
        meaning: str = "",
        *,
        same_size: bool = True,
    ) -> Work:
        """Run a collective if its caller waits for it anyway, else queue it.

        `meaning` is what all ranks must agree on, beside the sizes of the inputs if `same_size`.
        """
        if inputs and inputs[0].is_cuda:
            run = _after_gpu(run)
        if self._wants_agreement:
            sizes = [list(tensor.shape) for tensor in inputs] if same_size else ""
            kinds = {str(tensor.dtype).removeprefix("torch.") for tensor in inputs} or ""
            run = partial(_agreed, run, self._comm, f"{name} {meaning} {kinds} {sizes}")
        end, seconds = profiling.event(name, inputs), self._seconds(opts)
        waits = self._coalescing is None and caller.waits(opts)
        if waits and end is None and self._lane.run_now(name, seconds, run):
            return self._finished
        work = CollectiveWork(self._lane.finish, name, run, result, seconds, end)
        self._lane.add(work, waits=waits)
        return self._keep(work)

    def _seconds(self, opts: Any) -> float:
        own = getattr(opts, "timeout", None)
        # torch's "not given" is -1 ms.
        return (own if own is not None and own > _NONE else self._timeout).total_seconds()

    def _keep(self, work: Work) -> Work:
        self._kept.append(work)
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work


def _each(tensors: Tensors, collective: Callable[[torch.Tensor], None]) -> None:
    for tensor in tensors:
        collective(tensor)


def _pairs(
    outputs: Tensors, inputs: Tensors, collective: Callable[[torch.Tensor, torch.Tensor], None]
) -> None:
    for output, tensor in zip(outputs, inputs, strict=True):
        collective(output, tensor)


def _agreed(run: Callable[[], None], comm: MPI.Intracomm, meaning: str) -> None:
    agreement.demand(comm, meaning)
    run()


def _after_gpu(run: Callable[[], None]) -> Callable[[], None]:
    """Let `run`, in whichever thread, wait for what the caller's stream is doing, and finish what it does."""
    ready = torch.cuda.Event()
    ready.record()

    def run_between() -> None:
        ready.synchronize()
        run()
        torch.cuda.current_stream().synchronize()

    return run_between
