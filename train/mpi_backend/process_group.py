"""The process group: every method that torch.distributed calls, under the names of torch 2.6 to 2.15.

The signatures are those of torch/csrc/distributed/c10d/ProcessGroup.hpp: lists of lists, because a process
once had several GPUs. A method only describes the collective; base_group.py and work_queue.py run it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Work

from . import arguments, dense, exchange, plain, sparse
from .base_group import BaseGroup, Tensors
from .library import MPI
from .reduction import Reduction
from .uncompiled import uncompiled
from .waiting import complete
from .work import Coalesced


@uncompiled
class MpiProcessGroup(BaseGroup):
    """The ranks of a communicator, as torch's process group."""

    # --- collectives

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        if self._ran("broadcast", tensors, opts, plain.broadcast, tensors, opts.rootRank):
            return self._finished
        arguments.in_place(tensors)
        arguments.root(opts.rootRank, self._size)
        run = partial(_each, tensors, partial(dense.broadcast, self._comm, root=opts.rootRank))
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
                dense.all_reduce(comm, tensor, reduction)

        return self._start("all_reduce", run, tensors, tensors, opts, reduction=reduction, same_size=tensors)

    def _all_reduce_sparse(self, tensors: Tensors, opts: Any) -> Work:
        arguments.sparse(tensors)
        operation = opts.reduceOp.op.name
        if operation != "SUM":
            raise ValueError(f"all_reduce of sparse tensors has only SUM, not {operation}; use to_dense()")
        run = partial(_each, tensors, partial(sparse.all_reduce, self._comm))
        return self._start("sparse_all_reduce", run, (), tensors, opts, same_size=tensors)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        opts = opts or dist.AllreduceCoalescedOptions()
        arguments.in_place(tensors)
        reductions = [Reduction.of(opts.reduceOp, tensor.dtype) for tensor in tensors]

        def run() -> None:
            for tensor, reduction in zip(tensors, reductions, strict=True):
                dense.all_reduce(self._comm, tensor, reduction)

        return self._start(
            "all_reduce", run, tensors, tensors, opts, reduction=reductions[0], same_size=tensors
        )

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        if self._ran("reduce", tensors, opts, plain.reduce, tensors, opts.reduceOp, opts.rootRank):
            return self._finished
        arguments.in_place(tensors)
        arguments.root(opts.rootRank, self._size)
        reduction = Reduction.of(opts.reduceOp, tensors[0].dtype)
        reduce_tensor = partial(dense.reduce, self._comm, reduction=reduction, root=opts.rootRank)
        run, root = partial(_each, tensors, reduce_tensor), opts.rootRank
        return self._start(
            "reduce", run, tensors, tensors, opts, root=root, reduction=reduction, same_size=tensors
        )

    def allgather(self, outputs: Sequence[Tensors], tensors: Tensors, opts: Any = None) -> Work:
        arguments.gathered(outputs[0], tensors[0], self._size)
        run = partial(dense.all_gather, self._comm, outputs[0], tensors[0])
        return self._start("all_gather", run, tensors, list(outputs[0]), opts, same_type=tensors)

    def allgather_coalesced(self, outputs: Sequence[Tensors], tensors: Tensors, opts: Any = None) -> Work:
        """Gather several tensors: `outputs[rank][i]` receives that rank's `tensors[i]`."""
        for of_rank in outputs:
            arguments.pairs(of_rank, tensors)
        for number, tensor in enumerate(tensors):
            arguments.gathered([of_rank[number] for of_rank in outputs], tensor, self._size)

        def run() -> None:
            for number, tensor in enumerate(tensors):
                dense.all_gather(self._comm, [of_rank[number] for of_rank in outputs], tensor)

        result = [list(each) for each in outputs]
        return self._start("all_gather", run, tensors, result, opts, same_type=tensors)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        if self._ran("all_gather_into_tensor", [tensor], opts, plain.all_gather_single, output, tensor):
            return self._finished
        arguments.whole_from_parts([output], [tensor], self._size)
        run = partial(dense.all_gather_single, self._comm, output, tensor)
        return self._start("all_gather_into_tensor", run, [tensor], [output], opts, same_size=[tensor])

    def all_gather_single_coalesced(self, outputs: Tensors, tensors: Tensors, opts: Any = None) -> Work:
        arguments.whole_from_parts(outputs, tensors, self._size)
        run = partial(_pairs, outputs, tensors, partial(dense.all_gather_single, self._comm))
        return self._start("all_gather_into_tensor", run, tensors, list(outputs), opts, same_size=tensors)

    def gather(self, outputs: Sequence[Tensors], tensors: Tensors, opts: Any) -> Work:
        if self._ran("gather", tensors, opts, plain.gather, outputs, tensors, opts.rootRank):
            return self._finished
        arguments.root(opts.rootRank, self._size)
        mine = list(outputs[0]) if outputs and self._rank == opts.rootRank else []
        if self._rank == opts.rootRank:
            arguments.gathered(mine, tensors[0], self._size)
        arguments.read(tensors[0])
        run = partial(exchange.gather, self._comm, mine, tensors[0], opts.rootRank)
        return self._start("gather", run, tensors, mine, opts, root=opts.rootRank, same_type=tensors)

    def gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> Work:
        """`output` is only used on the root; its rows are the ranks' tensors, one after the other."""
        if self._rank != opts.rootRank:
            return self.gather([], [tensor], opts)
        arguments.whole_from_parts([output], [tensor], self._size)
        return self.gather([list(output.view(self._size, -1))], [tensor], opts)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Work:
        parts = list(inputs[0]) if inputs and self._rank == opts.rootRank else []
        if self._ran("scatter", parts, opts, plain.scatter, outputs, [parts], opts.rootRank):
            return self._finished
        arguments.root(opts.rootRank, self._size)
        if self._rank == opts.rootRank:
            arguments.scattered(parts, outputs[0], self._size)
        arguments.written(outputs[0])
        run = partial(exchange.scatter, self._comm, outputs[0], parts, opts.rootRank)
        # Every rank has an output, but only the root has inputs.
        return self._start(
            "scatter", run, parts, [outputs[0]], opts, root=opts.rootRank, same_type=[outputs[0]]
        )

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Work:
        arguments.reduced(inputs[0], outputs[0], self._rank, self._size)
        reduction = Reduction.of(opts.reduceOp, outputs[0].dtype)
        run = partial(dense.reduce_scatter, self._comm, outputs[0], inputs[0], reduction)
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
        reduce_scatter_pair = partial(dense.reduce_scatter_single, self._comm, reduction=reduction)
        run = partial(_pairs, outputs, tensors, reduce_scatter_pair)
        return self._start(
            "reduce_scatter_tensor",
            *(run, tensors, list(outputs), opts),
            reduction=reduction,
            same_size=tensors,
        )

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        arguments.exchanged(outputs, inputs, self._size)
        run = partial(exchange.exchange, self._comm, inputs, outputs)
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
        run = partial(exchange.all_to_all_single, self._comm, output, tensor, output_sizes, input_sizes)
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
