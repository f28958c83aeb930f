"""Data-parallel training with mpi4py alone: Allreduce of the gradients, after or during the backward pass.

    mpirun -np 2 python examples/mpi4py_allreduce.py
    srun --mpi=pmix --ntasks 2 python examples/mpi4py_allreduce.py
    muster launch --hosts hosts.txt --launcher mpirun examples/mpi4py_allreduce.py

It trains one model in each way, and with torch's DistributedDataParallel: the losses are equal. It is a
template for programs that cannot use DistributedDataParallel; docs/how-to/mpi4py.md explains it.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from muster.train import Job, TrainError, run
from muster.train.job.mpi_world import communicator
from muster.train.mpi_backend.direct import MPI, all_reduce_sum, broadcast

BUCKET_BYTES = 4 << 20
SAMPLES, BATCH, STEPS = 512, 96, 20


class Bucket:
    """Gradients side by side in one flat tensor, so that one message carries many."""

    def __init__(self, parameters: list[nn.Parameter], dtype: torch.dtype) -> None:
        self.parameters = parameters
        sizes = [each.numel() for each in parameters]
        # At the end a mark for each gradient: 1 if this rank has it, else 0.
        self.flat = torch.zeros(sum(sizes) + len(sizes), dtype=dtype)
        *self.parts, self.marks = torch.split(self.flat, [*sizes, len(sizes)])
        self.expect()

    def expect(self) -> None:
        """Prepare for the gradients of the next step."""
        self.missing = set(self.parameters)
        self.sum: Future[None] | None = None
        self.late = False

    def fill(self) -> None:
        """Copy the gradients into the flat tensor."""
        self.marks.copy_(torch.tensor([each.grad is not None for each in self.parameters]))
        for parameter, part in zip(self.parameters, self.parts, strict=True):
            if parameter.grad is None:  # this rank's backward pass did not reach it
                part.zero_()
            else:
                part.copy_(parameter.grad.reshape(-1))

    def hand_out(self) -> None:
        """Give the parameters the sums; a parameter without a gradient on every rank keeps none."""
        if not self.flat.isfinite().all():
            raise TrainError(f"a gradient is not finite, or above the largest {self.flat.dtype}")
        for parameter, part, ranks in zip(self.parameters, self.parts, self.marks.tolist(), strict=True):
            total = part.view_as(parameter).to(parameter.device, parameter.dtype)
            parameter.grad = total if ranks else None


class GradientSum:
    """Adds up the gradients of `parameters` over the ranks of `comm`; they travel as `wire`, if given.

    Call `finish` when the last backward pass of a step is done. Call `begin` before that pass, and full
    buckets travel while it runs; what other passes add before `begin` stays on this rank until then.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], comm: MPI.Intracomm, wire: torch.dtype | None = None
    ) -> None:
        self.comm = comm.Dup()  # for the thread alone
        self.thread = ThreadPoolExecutor(1, "allreduce")
        self.buckets = [Bucket(each, wire or each[0].dtype) for each in in_buckets(parameters)]
        self.next: int | None = None  # bucket to start; None outside of begin() and finish()
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self._arrived, bucket))

    def begin(self) -> None:
        """Start sums as soon as buckets are full, from now on."""
        self.next = 0

    def _arrived(self, bucket: Bucket, parameter: nn.Parameter) -> None:
        """Autograd calls this when it has added to a gradient."""
        if self.next is None:
            return
        # Weights that are used twice under checkpointing get their gradient in parts. A sum that began with
        # the first part must be made again.
        bucket.late = bucket.sum is not None
        bucket.missing.discard(parameter)
        # In the order of the list: every rank must start the same sums in the same order, but its backward
        # pass may reach the parameters in another.
        while self.next < len(self.buckets) and not self.buckets[self.next].missing:
            self._start(self.buckets[self.next])
            self.next += 1

    def _start(self, bucket: Bucket) -> None:
        bucket.fill()
        bucket.sum = self.thread.submit(all_reduce_sum, self.comm, bucket.flat)

    def finish(self) -> None:
        """Replace the gradients by their sums over all ranks. Every rank calls this, once in each step."""
        for bucket in self.buckets[self.next or 0 :]:
            self._start(bucket)
        self._wait()
        if self.next is not None:
            self._repeat_late_sums()
        self.next = None
        for bucket in self.buckets:
            bucket.hand_out()
            bucket.expect()

    def _wait(self) -> None:
        for bucket in self.buckets:
            if bucket.sum is not None:
                bucket.sum.result()  # raises what went wrong in the thread

    def _repeat_late_sums(self) -> None:
        late_on = torch.tensor([float(bucket.late) for bucket in self.buckets])
        all_reduce_sum(self.comm, late_on)
        for bucket, ranks in zip(self.buckets, late_on.tolist(), strict=True):
            if ranks:
                self._start(bucket)
        self._wait()


def in_buckets(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Split the parameters that are trained: in one bucket one type, and BUCKET_BYTES or one parameter.

    The last come first, because a backward pass reaches them first.
    """
    buckets: list[list[nn.Parameter]] = []
    free = 0
    for each in reversed([each for each in parameters if each.requires_grad]):
        if not buckets or each.dtype != buckets[-1][0].dtype or each.nbytes > free:
            buckets.append([])
            free = BUCKET_BYTES
        buckets[-1].append(each)
        free -= each.nbytes
    return buckets


def make_model(job: Job) -> nn.Module:
    torch.manual_seed(job.rank)  # another model on every rank, until rank 0's is sent
    return nn.Sequential(nn.Linear(1, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1)).to(
        job.device
    )


def with_mpi4py(job: Job, *, overlap: bool, wire: torch.dtype | None = None) -> float:
    """Train with sums of gradients over MPI; returns the last loss."""
    comm, model = communicator(job.ranks), make_model(job)
    for tensor in model.state_dict().values():
        broadcast(comm, tensor)
    gradients = GradientSum(model.parameters(), comm, wire)

    def backward(loss: torch.Tensor) -> None:
        if overlap:
            gradients.begin()
        loss.backward()
        gradients.finish()

    return train(job, model, backward)


def with_ddp(job: Job) -> float:
    """Train with DistributedDataParallel, which takes the mean over the ranks; returns the last loss."""
    model = DistributedDataParallel(make_model(job))
    return train(job, model, lambda loss: (loss * job.world_size).backward())


def train(job: Job, model: nn.Module, backward: Callable[[torch.Tensor], None]) -> float:
    """Take STEPS steps; `backward` leaves every rank the sum of all ranks' gradients."""
    data = torch.linspace(-3, 3, SAMPLES, device=job.device).unsqueeze(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    order = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        batch = torch.randperm(SAMPLES, generator=order)[:BATCH]
        share = data[batch[job.rank :: job.world_size]]
        optimizer.zero_grad()
        # Divided by the size of the whole batch, so that the sum over the ranks is the gradient of its mean,
        # even if the shares differ.
        backward(((model(share) - share.sin()) ** 2).sum() / BATCH)
        optimizer.step()
    with torch.no_grad():
        return float(((model(data) - data.sin()) ** 2).mean())


def compare(job: Job) -> None:
    ways: dict[str, Callable[[], float]] = {
        "after backward": partial(with_mpi4py, job, overlap=False),
        "while backward runs": partial(with_mpi4py, job, overlap=True),
        "the same, as bfloat16": partial(with_mpi4py, job, overlap=True, wire=torch.bfloat16),
        "DistributedDataParallel": partial(with_ddp, job),
    }
    for name, way in ways.items():
        way()  # the first messages make connections
        job.barrier()
        began = time.perf_counter()
        loss = way()
        if job.rank == 0:
            taken = (time.perf_counter() - began) / STEPS * 1000
            print(f"{name}: loss {loss:.6f}, {taken:.1f} ms a step", flush=True)


if __name__ == "__main__":
    run(compare)
