"""The process group: every method that torch.distributed calls, under the names of torch 2.6 to 2.15.

The signatures are those of torch/csrc/distributed/c10d/ProcessGroup.hpp: lists of lists, because a process
once had several GPUs. A method only describes the collective; BaseGroup and work_queue.py run it.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import DebugLevel, PrefixStore, ProcessGroup, Work, get_debug_level

from . import arguments, caller, collectives, order, plain, recording
from .buffers import stream_event
from .caller import uncompiled
from .exceptions import MpiBackendError
from .library import MPI, complete
from .point_to_point import Messages, MessageWork
from .reduction import Reduction
from .watchdog import MonitoredBarrier, Presence, Watched, watchdog
from .work_queue import Coalesced, CollectiveWork, Finished, WorkQueue

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
                self._messages.comm.Free()
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
        if recording.enabled() or (made := call(self._comm, *arguments)) is None:
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
        end, seconds = recording.event(name, inputs), self._seconds(opts)
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
    order.check_agreement(comm, description)
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


@uncompiled
class MpiProcessGroup(BaseGroup):
    """The ranks of a communicator, as torch's process group."""

    # --- collectives

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        if self._ran("broadcast", tensors, opts, plain.broadcast, tensors, opts.rootRank):
            return self._finished
        arguments.in_place(tensors)
        arguments.root(opts.rootRank, self._size)
        run = partial(_each, tensors, partial(collectives.broadcast, self._comm, root=opts.rootRank))
        return self._start("broadcast", run, tensors, tensors, opts, root=opts.rootRank, same_size=tensors)

    def allreduce(self, tensors: Tensors | torch.Tensor, opts: Any = None) -> Work:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        opts = opts or dist.AllreduceOptions()
        if self._ran("all_reduce", tensors, opts, plain.all_reduce, tensors, opts.reduceOp):
            return self._finished
        if tensors[0].is_sparse:
            return self._all_reduce_sparse(tensors, opts)
        arguments.in_place(tensors)
        comm, reduction = self._comm, Reduction.of(opts.reduceOp, tensors[0].dtype)

        def run() -> None:
            for tensor in tensors:
                collectives.all_reduce(comm, tensor, reduction)

        return self._start("all_reduce", run, tensors, tensors, opts, reduction=reduction, same_size=tensors)

    def _all_reduce_sparse(self, tensors: Tensors, opts: Any) -> Work:
        arguments.sparse(tensors)
        operation = opts.reduceOp.op.name
        if operation != "SUM":
            raise ValueError(f"all_reduce of sparse tensors has only SUM, not {operation}; use to_dense()")
        run = partial(_each, tensors, partial(collectives.all_reduce_sparse, self._comm))
        return self._start("sparse_all_reduce", run, (), tensors, opts, same_size=tensors)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        opts = opts or dist.AllreduceCoalescedOptions()
        arguments.in_place(tensors)
        reductions = [Reduction.of(opts.reduceOp, tensor.dtype) for tensor in tensors]

        def run() -> None:
            for tensor, reduction in zip(tensors, reductions, strict=True):
                collectives.all_reduce(self._comm, tensor, reduction)

        return self._start(
            "all_reduce", run, tensors, tensors, opts, reduction=reductions[0], same_size=tensors
        )

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        arguments.in_place(tensors)
        arguments.root(opts.rootRank, self._size)
        reduction = Reduction.of(opts.reduceOp, tensors[0].dtype)
        reduce_tensor = partial(collectives.reduce, self._comm, reduction=reduction, root=opts.rootRank)
        run, root = partial(_each, tensors, reduce_tensor), opts.rootRank
        return self._start(
            "reduce", run, tensors, tensors, opts, root=root, reduction=reduction, same_size=tensors
        )

    def allgather(self, outputs: Sequence[Tensors], tensors: Tensors, opts: Any = None) -> Work:
        arguments.gathered(outputs[0], tensors[0], self._size)
        run = partial(collectives.all_gather, self._comm, outputs[0], tensors[0])
        return self._start("all_gather", run, tensors, list(outputs[0]), opts, same_type=tensors)

    def allgather_coalesced(self, outputs: Sequence[Tensors], tensors: Tensors, opts: Any = None) -> Work:
        """Gather several tensors: `outputs[rank][i]` receives that rank's `tensors[i]`."""
        for of_rank in outputs:
            arguments.pairs(of_rank, tensors)
        for number, tensor in enumerate(tensors):
            arguments.gathered([of_rank[number] for of_rank in outputs], tensor, self._size)

        def run() -> None:
            for number, tensor in enumerate(tensors):
                collectives.all_gather(self._comm, [of_rank[number] for of_rank in outputs], tensor)

        result = [list(each) for each in outputs]
        return self._start("all_gather", run, tensors, result, opts, same_type=tensors)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        if self._ran("all_gather_into_tensor", [tensor], opts, plain.all_gather_single, output, tensor):
            return self._finished
        arguments.whole_from_parts([output], [tensor], self._size)
        run = partial(collectives.all_gather_single, self._comm, output, tensor)
        return self._start("all_gather_into_tensor", run, [tensor], [output], opts, same_size=[tensor])

    def all_gather_single_coalesced(self, outputs: Tensors, tensors: Tensors, opts: Any = None) -> Work:
        arguments.whole_from_parts(outputs, tensors, self._size)
        run = partial(_pairs, outputs, tensors, partial(collectives.all_gather_single, self._comm))
        return self._start("all_gather_into_tensor", run, tensors, list(outputs), opts, same_size=tensors)

    def gather(self, outputs: Sequence[Tensors], tensors: Tensors, opts: Any) -> Work:
        arguments.root(opts.rootRank, self._size)
        mine = list(outputs[0]) if outputs and self._rank == opts.rootRank else []
        if self._rank == opts.rootRank:
            arguments.gathered(mine, tensors[0], self._size)
        arguments.read(tensors[0])
        run = partial(collectives.gather, self._comm, mine, tensors[0], opts.rootRank)
        return self._start("gather", run, tensors, mine, opts, root=opts.rootRank, same_type=tensors)

    def gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> Work:
        """`output` is only used on the root; its rows are the ranks' tensors, one after the other."""
        if self._rank != opts.rootRank:
            return self.gather([], [tensor], opts)
        arguments.whole_from_parts([output], [tensor], self._size)
        return self.gather([list(output.view(self._size, -1))], [tensor], opts)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Work:
        parts = list(inputs[0]) if inputs and self._rank == opts.rootRank else []
        arguments.root(opts.rootRank, self._size)
        if self._rank == opts.rootRank:
            arguments.scattered(parts, outputs[0], self._size)
        arguments.written(outputs[0])
        run = partial(collectives.scatter, self._comm, outputs[0], parts, opts.rootRank)
        # Every rank has an output, but only the root has inputs.
        return self._start(
            "scatter", run, parts, [outputs[0]], opts, root=opts.rootRank, same_type=[outputs[0]]
        )

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Work:
        arguments.reduced(inputs[0], outputs[0], self._rank, self._size)
        reduction = Reduction.of(opts.reduceOp, outputs[0].dtype)
        run = partial(collectives.reduce_scatter, self._comm, outputs[0], inputs[0], reduction)
        return self._start(
            "reduce_scatter", run, inputs[0], [outputs[0]], opts, reduction=reduction, same_size=inputs[0]
        )

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> Work:
        return self._reduce_scatter([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, tensors: Tensors, opts: Any) -> Work:
        return self._reduce_scatter(outputs, tensors, opts)

    def _reduce_scatter(self, outputs: Tensors, tensors: Tensors, opts: Any) -> Work:
        if self._ran(
            "reduce_scatter_tensor",
            tensors,
            opts,
            plain.reduce_scatter_single,
            outputs,
            tensors,
            opts.reduceOp,
        ):
            return self._finished
        arguments.parts_of_whole(outputs, tensors, self._size)
        reduction = Reduction.of(opts.reduceOp, outputs[0].dtype)
        reduce_scatter_pair = partial(collectives.reduce_scatter_single, self._comm, reduction=reduction)
        run = partial(_pairs, outputs, tensors, reduce_scatter_pair)
        return self._start(
            "reduce_scatter_tensor",
            *(run, tensors, list(outputs), opts),
            reduction=reduction,
            same_size=tensors,
        )

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        arguments.exchanged(outputs, inputs, self._size)
        run = partial(collectives.exchange, self._comm, inputs, outputs)
        return self._start("all_to_all", run, inputs, list(outputs), opts, same_type=outputs[:1])

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any = None,
    ) -> Work:
        equal = not (output_sizes or input_sizes)
        if equal and self._ran("all_to_all", [tensor], opts, plain.all_to_all_single, output, tensor):
            return self._finished
        arguments.rows_exchanged(output, tensor, output_sizes, input_sizes, self._size)
        run = partial(collectives.all_to_all_single, self._comm, output, tensor, output_sizes, input_sizes)
        if not equal:
            return self._start("all_to_all", run, [tensor], [output], opts, same_type=[output])
        return self._start("all_to_all", run, [tensor], [output], opts, same_size=[output])

    def barrier(self, opts: Any = None) -> Work:
        """Wait for every rank. It moves no data, so a rank can leave it: its time-out is an exception."""
        seconds = self._seconds(opts)

        def run() -> None:
            complete(self._comm.Ibarrier(), seconds, "barrier")

        return self._start("barrier", run, (), [], opts)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait for every rank; raises TimedOutError, which on rank 0 names the ranks that did not come."""
        seconds = (self._timeout if timeout is None else timeout).total_seconds()
        self._monitored.wait(seconds, wait_all_ranks=wait_all_ranks)

    # Older names, which torch 2.13 and before call, and some programs after it.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
    gather_into_tensor = gather_single

    # --- messages

    def send(self, tensors: Tensors, to: int, tag: int = 0) -> Work:
        arguments.message(tensors[0], to, tag, self._size)
        return self._keep(self._messages.send(tensors[0], to, tag, self._timeout.total_seconds()))

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Work:
        arguments.message(tensors[0], source, tag, self._size)
        arguments.written(tensors[0])
        return self._keep(self._messages.receive(tensors[0], source, tag, self._timeout.total_seconds()))

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        arguments.message(tensors[0], None, tag, self._size)
        arguments.written(tensors[0])
        return self._keep(self._messages.receive(tensors[0], None, tag, self._timeout.total_seconds()))

    # --- several at once, as one Work

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalescing = []

    def _end_coalescing(self, device: torch.device) -> Work:
        works, self._coalescing = self._coalescing or [], None
        return self._keep(Coalesced(works))

    # --- groups of this group

    def splitGroup(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        devices: Any = None,
    ) -> MpiProcessGroup | None:
        """Return, on `ranks`, the new group of these ranks; every rank of this group calls it."""
        inside = self._rank in ranks
        comm: MPI.Intracomm = self._comm.Split(
            0 if inside else MPI.UNDEFINED, list(ranks).index(self._rank) if inside else 0
        )
        if not inside:
            return None
        name = group_name or f"{self._name}:split"
        store = PrefixStore(f"{name}/", self._store)
        split = MpiProcessGroup(comm, store, timeout or self._timeout, name)
        split.setGroupDesc(group_desc or "")
        return split


def _each(tensors: Tensors, collective: Callable[[torch.Tensor], None]) -> None:
    for tensor in tensors:
        collective(tensor)


def _pairs(
    outputs: Tensors, inputs: Tensors, collective: Callable[[torch.Tensor, torch.Tensor], None]
) -> None:
    for output, tensor in zip(outputs, inputs, strict=True):
        collective(output, tensor)


def create_group(options: Any) -> MpiProcessGroup:
    """Make the group that `options` (c10d's DistributedBackendOptions) describes.

    Raises MpiBackendError if MPI lacks MPI_THREAD_MULTIPLE, or numbers the ranks differently from torch.
    """
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise MpiBackendError(f"needs an MPI with MPI_THREAD_MULTIPLE, not {MPI.Get_library_version()}")
    ranks = list(options.global_ranks_in_group)
    comm = _of(ranks) if ranks else _of_all(options.group_rank, options.group_size)
    return MpiProcessGroup(comm, options.store, options.timeout, options.group_id or "default_pg")


def _of_all(rank: int, size: int) -> MPI.Intracomm:
    world = MPI.COMM_WORLD
    # For a backend named "mpi", torch 2.14 and later pass -1 for both.
    if (rank, size) not in {(world.rank, world.size), (-1, -1)}:
        raise MpiBackendError(
            f"torch says rank {rank} of {size}, but MPI says rank {world.rank} of {world.size}; "
            "start the ranks with the mpirun of the MPI that mpi4py loads"
        )
    return world.Dup()


def _of(ranks: list[int]) -> MPI.Intracomm:
    """Make a communicator of some ranks; only they call this, where Comm.Create would need all."""
    members = MPI.COMM_WORLD.group.Incl(ranks)
    try:
        return MPI.COMM_WORLD.Create_group(members)
    finally:
        members.Free()
