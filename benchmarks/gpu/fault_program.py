"""A rank that fails or hangs on its GPU, in a way that its arguments name: FAULT DEVICE SECONDS.

part_faults.py launches it. On a CPU a call of C takes the part of a kernel, and the errors of CUDA and NCCL
are raised with their own texts. It ends itself after twice the seconds of its kernel.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

if os.environ.get("CUDA_VISIBLE_DEVICES") == "" and sys.argv[1] != "hidden":
    del os.environ["CUDA_VISIBLE_DEVICES"]  # of --gpus 0: the launches of the part share a GPU
import torch
import torch.distributed as dist

fault, device, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
on_gpu = device != "cpu"
rank = int(os.environ["RANK"])
out = Path(os.environ["MUSTER_OUT"])
MOST_SECONDS, MOST_ROUNDS = 60.0, (1 << 31) - 1
CYCLES = 2e9
"""Of a second, about: the multiprocessors of an H100 run at up to 1.98 GHz."""
BLOCKING_SYNC = 4  # cudaDeviceScheduleBlockingSync
ASSERT = "CUDA error: device-side assert triggered\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
ILLEGAL = "CUDA error: an illegal memory access was encountered\n"
FULL = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.19 GiB of which "
    "1.31 GiB is free. Process {} has 70.25 GiB memory in use. {}Including non-PyTorch memory, this process "
    "has 7.62 GiB memory in use. Of the allocated memory 7.00 GiB is allocated by PyTorch, and 10.50 MiB is "
    "reserved by PyTorch but unallocated."
)
NCCL = (
    "NCCL error in: ProcessGroupNCCL.cpp:94, invalid usage (run with NCCL_DEBUG=WARN), NCCL version 2.28\n"
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
    "Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 61000"
)


def note_ready() -> None:
    """Tell the part that the fault begins now."""
    new = out / f"new-{rank}"
    new.write_text(str(os.getpid()))
    new.rename(out / f"ready-{rank}")


# -- kernels --


def start_kernel() -> int:
    """Start a kernel that spins; without a GPU, the rounds of a call of C that takes as long."""
    if on_gpu:
        cuda: Any = torch.cuda  # its type says nothing of this function
        cuda._sleep(int(CYCLES * min(seconds, MOST_SECONDS)))
        return 0
    rounds, began = 1 << 16, time.monotonic()
    hashlib.pbkdf2_hmac("sha256", b"", b"", rounds)
    return min(MOST_ROUNDS, int(rounds * seconds / (time.monotonic() - began)))


def hang_in_item() -> None:
    """In the reading of a value on the GPU."""
    dist.init_process_group("gloo")
    loss = torch.ones(1, device=device)
    rounds = start_kernel()
    note_ready()
    if on_gpu:
        sys.stdout.write(str(loss.item()))
    hashlib.pbkdf2_hmac("sha256", b"", b"", rounds or 1)


def hang_in_synchronize() -> None:
    """In the wait for all work of the GPU."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    rounds = start_kernel()
    note_ready()
    if on_gpu:
        torch.cuda.synchronize()
    hashlib.pbkdf2_hmac("sha256", b"", b"", rounds or 1)


def hang_alone() -> None:
    """In a CUDA call of an extension that keeps the interpreter's lock."""
    start_kernel()
    began = time.monotonic()
    sum(range(1 << 22))
    most = int((1 << 22) / (time.monotonic() - began) * seconds)
    note_ready()
    if on_gpu:
        ctypes.PyDLL(_runtime()).cudaDeviceSynchronize()
    else:
        sum(range(most))


def hang_idle() -> None:
    """In a wait for the GPU that leaves the processor idle."""
    if on_gpu:
        ctypes.CDLL(_runtime()).cudaSetDeviceFlags(BLOCKING_SYNC)
    dist.init_process_group("gloo")
    start_kernel()
    note_ready()
    if on_gpu:
        torch.cuda.synchronize()
    else:
        time.sleep(seconds)


def _runtime() -> str:
    """The path of CUDA's runtime library, which torch has loaded."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in maps if "libcudart" in line)


# -- collectives --


def miss_collective(backend: str) -> None:
    """Rank 1 hangs in a kernel, and rank 0 waits for it in a collective."""
    dist.init_process_group(backend, timeout=timedelta(seconds=2 * seconds))
    loss = torch.ones(1 << 10, device=device)
    if rank == 1:
        hang_in_synchronize()
    else:
        note_ready()
        dist.all_reduce(loss)
        sys.stdout.write(str(loss.sum().item()))


def share_gpu() -> None:
    """Two ranks of NCCL on one GPU, which NCCL refuses."""
    if not on_gpu:
        raise RuntimeError(NCCL)
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", timeout=timedelta(seconds=seconds))
    dist.all_reduce(torch.ones(1, device=device))
    torch.cuda.synchronize()


# -- failures --


def fill_memory() -> None:
    """Rank 0 has seven tenths of the free memory; rank 1 asks for as much, and never gets it."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
    kept: list[Any] = []
    pids: list[Any] = [None, None]
    dist.all_gather_object(pids, os.getpid())
    free = torch.cuda.mem_get_info()[0] if on_gpu else 0
    dist.barrier()
    if on_gpu and rank == 0:
        kept.append(torch.empty(int(0.7 * free), dtype=torch.uint8, device=device))
    dist.barrier()
    if rank == 1:
        if not on_gpu:
            holder = os.environ.get("HOLDER")
            other = f"Process {holder} has 2.44 GiB memory in use. " if holder else ""
            raise torch.OutOfMemoryError(FULL.format(pids[0], other))
        torch.empty(int(0.7 * free), dtype=torch.uint8, device=device)
    note_ready()
    time.sleep(seconds)


def fail_assertion() -> None:
    """A kernel that gets an index out of range."""
    if not on_gpu:
        raise RuntimeError(ASSERT)
    values = torch.ones(4, device=device)
    chosen = values[torch.tensor([1 << 20], device=device)]
    total = chosen.sum()
    sys.stdout.write(str(total.item()))


def fail_access() -> None:
    """A kernel that writes where there is no memory."""
    if not on_gpu:
        raise RuntimeError(ILLEGAL)
    compile_kernel: Any = torch.cuda._compile_kernel
    compile_kernel('extern "C" __global__ void write() { *(volatile int *)16 = 1; }', "write")()
    torch.cuda.synchronize()


def hide_gpu() -> None:
    """A rank whose GPU is hidden: the launch has CUDA_VISIBLE_DEVICES empty."""
    if not on_gpu:
        raise RuntimeError("No CUDA GPUs are available")
    torch.ones(1, device=device)


FAULTS = {
    "item": hang_in_item,
    "synchronize": hang_in_synchronize,
    "alone": hang_alone,
    "idle": hang_idle,
    "gloo": lambda: miss_collective("gloo"),
    "nccl": lambda: miss_collective("nccl" if on_gpu else "gloo"),
    "duplicate": share_gpu,
    "memory": fill_memory,
    "assertion": fail_assertion,
    "access": fail_access,
    "hidden": hide_gpu,
}

if __name__ == "__main__":
    signal.alarm(int(2 * seconds) + 1)  # its default action ends the process, also in C
    FAULTS[fault]()
