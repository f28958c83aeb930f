"""Sums that are communicated while a rank computes: asynchronous all_reduce, one or several at once.

    python examples/async_all_reduce.py --spawn 2
    torchrun --nproc-per-node 2 examples/async_all_reduce.py
    muster launch --hosts hosts.txt examples/async_all_reduce.py

DistributedDataParallel does the second for you: its buckets correspond to the layers here.
"""

import time
from argparse import ArgumentParser

import torch
import torch.distributed as dist

from muster.train import Job, run

LAYERS, NUMBERS = 8, 200_000  # gradients of so many layers, of so many numbers each


def one_at_a_time(job: Job) -> list[torch.Tensor]:
    """Compute a layer's gradient, wait for its sum over the ranks, continue."""
    sums = []
    for layer in range(LAYERS):
        gradient = compute(job, layer)
        dist.all_reduce(gradient)
        sums.append(gradient)
    return sums


def while_computing(job: Job) -> list[torch.Tensor]:
    """Start a layer's sum and compute the next layer meanwhile.

    Until wait() returns, the sum may be half done: neither read nor change the tensor. All ranks must start
    the same sums in the same order.
    """
    started = []
    for layer in range(LAYERS):
        gradient = compute(job, layer)
        started.append((gradient, dist.all_reduce(gradient, async_op=True)))
    for _, work in started:
        work.wait()
    return [gradient for gradient, _ in started]


def compute(job: Job, layer: int) -> torch.Tensor:
    """Simulate the backward pass of a layer."""
    busy = torch.randn(256, 256, device=job.device)
    for _ in range(10):
        busy = (busy @ busy).tanh()
    return torch.full((NUMBERS,), float(layer + job.rank), device=job.device)


def compare(job: Job) -> None:
    for pattern in (one_at_a_time, while_computing):
        pattern(job)  # the first call makes connections
        job.barrier()
        began = time.perf_counter()
        sums = pattern(job)
        if job.device.type == "cuda":  # where the host runs ahead
            torch.cuda.synchronize()
        taken = time.perf_counter() - began
        others = sum(range(job.world_size))
        right = all((each == layer * job.world_size + others).all() for layer, each in enumerate(sums))
        if job.rank == 0:
            print(f"{pattern.__name__}: {1000 * taken:.0f} ms, {'right' if right else 'WRONG'}", flush=True)
    job.barrier()


if __name__ == "__main__":
    (parser := ArgumentParser()).add_argument("--spawn", type=int, default=0, help="ranks to start here")
    run(compare, spawn=parser.parse_known_args()[0].spawn)
