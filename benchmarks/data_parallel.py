"""Threads of one process, as in torch.nn.DataParallel, against a process for each part of the batch.

    torchrun --nproc-per-node 2 benchmarks/data_parallel.py

Without GPUs torch.nn.DataParallel calls the model directly, and its parallel_apply refuses to work. So
"threads" repeats its work with two GPUs on two cores: in each step copy the weights to a replica, take the
passes of two halves of the batch in two threads of one process, and add up the gradients.
"DDP" is a process for each half. All of them train in turn, on the same global batch.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from tools.architectures import architecture  # type: ignore[import-not-found]
from torch import nn
from torch.nn.functional import cross_entropy

from muster.train import Job, run, synchronise

ROUNDS, STEPS, BATCH = 5, 2, 32


def model() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return a network and a global batch."""
    torch.manual_seed(0)
    built = architecture("resnet26")
    return built.network, torch.randn(BATCH, *built.shape), torch.randint(built.classes, (BATCH,))


def one_process() -> Callable[[], None]:
    """Return a step of torch.nn.DataParallel in a process without GPUs."""
    network, images, labels = model()
    optimizer, parallel = torch.optim.SGD(network.parameters(), lr=0.01), nn.DataParallel(network)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(parallel(images), labels))
        optimizer.step()

    return step


def two_threads() -> Callable[[], None]:
    """Return a step of one process with two threads."""
    network, images, labels = model()
    replica, threads = deepcopy(network), ThreadPoolExecutor(2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    pairs = list(zip(network.parameters(), replica.parameters(), strict=True))

    def half(module: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        torch.set_num_threads(1)
        torch.autograd.backward(cross_entropy(module(inputs), targets) / 2)

    def step() -> None:
        optimizer.zero_grad()
        replica.zero_grad()
        for weight, copy in pairs:
            copy.data.copy_(weight.data)
        list(threads.map(half, (network, replica), images.chunk(2), labels.chunk(2)))
        for weight, copy in pairs:
            if weight.grad is not None and copy.grad is not None:
                weight.grad += copy.grad
        optimizer.step()

    return step


def a_process_for_each(job: Job) -> Callable[[], None]:
    """Return a step of this rank, with its half of the batch."""
    network, images, labels = model()
    mine, own = images.chunk(2)[job.rank], labels.chunk(2)[job.rank]
    wrapped = synchronise(network, job)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(wrapped(mine), own))
        optimizer.step()

    return step


def measure(job: Job) -> None:
    """Time all of them in turn; what one process does, rank 0 does, while the other rank sleeps."""
    torch.set_num_threads(1)
    steps = {
        "DataParallel without GPUs": one_process(),
        "threads": two_threads(),
        "DDP": a_process_for_each(job),
    }
    times: dict[str, list[float]] = {title: [] for title in steps}
    for number in range(ROUNDS + 1):
        for title, step in steps.items():
            dist.barrier()
            began = time.perf_counter()
            for _ in range(STEPS if title == "DDP" or job.rank == 0 else 0):
                step()
            if number > 0:  # the first round warms up
                times[title].append((time.perf_counter() - began) / STEPS * 1000)
    if job.rank == 0:
        sys.stdout.write(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
        for title, row in times.items():
            ratio = statistics.median(a / b for a, b in zip(row, times["DDP"], strict=True))
            bounds = f"{statistics.median(row):.0f} ({min(row):.0f}-{max(row):.0f})"
            sys.stdout.write(f"| {title} | {bounds} | {ratio:.2f} |\n")


if __name__ == "__main__":
    run(measure)
