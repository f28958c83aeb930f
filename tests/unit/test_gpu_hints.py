"""Hints about failures on a GPU, from the last lines of a rank."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest

from muster.deploy.core.job.result import LaunchResult, RankExit
from muster.deploy.features.hints.driver import GpuUser, hint
from muster.deploy.features.leases.messages import Device, Lease
from tests.unit.plans import NODE, make_plan

OWN = "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))"
LATE = (
    "a GPU reports an error later than its line, so the traceback may name another one; "
    "--env CUDA_LAUNCH_BLOCKING=1 has it name the line"
)
DEBUG = "--env NCCL_DEBUG=INFO has NCCL print the cause"
HELP = (
    "Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda/ for more information.\n",
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below "
    "might be incorrect.\n",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n",
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
    "\n",
)


def hint_about(*tail: str, there: int = 1, users: Sequence[GpuUser] = (), **spec: Any) -> str:
    """The hint after a failure of rank 1 on node1, which has so many GPUs, with these last lines."""
    plan = make_plan("node1 slots=4", **spec)
    end = RankExit(
        plan.ranks[1], 1, 1.0, tail, found={"gpu_users": json.dumps([asdict(user) for user in users])}
    )
    result = LaunchResult(plan, 1.0, 2.0, end.as_failure(), {1: end})
    return hint(result, {"node1": dataclasses.replace(NODE, gpus=there)}, {}, here=True)


# -- full memory --


def full(*parts: str, device: int = 0, own: str = "7.62 GiB", fragments: str = "10.50 MiB") -> str:
    """torch's message, with sentences about other processes."""
    return (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
        f"GPU {device} has a total capacity of 79.19 GiB of which 1.31 GiB is free. {''.join(parts)}"
        f"Including non-PyTorch memory, this process has {own} memory in use. Of the allocated memory 7 GiB "
        f"is allocated by PyTorch, and {fragments} is reserved by PyTorch but unallocated. If reserved but "
        "unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid "
        "fragmentation.  See documentation for Memory Management\n"
    )


OTHER = "Process 71 has 70.25 GiB memory in use. "
IS_FULL = "of node1 is full: rank 1 asked for 2.00 GiB, of 79.19 GiB 1.31 GiB is free, it has 7.62 GiB"
RANK, STRANGER = GpuUser(71, "ml", "python3", 0), GpuUser(71, "alice", "python3")


@pytest.mark.parametrize(
    ("users", "gpus", "said"),
    [
        ([RANK], 8, f"rank 0 has 70.25 GiB; give each rank its own GPU: {OWN}"),
        ([RANK], 1, "rank 0 has 70.25 GiB; start one rank for each GPU: --slots gpus"),
        ([STRANGER], 1, "python3 of alice (process 71) has 70.25 GiB; wait for the other process, or end it"),
        (
            [],
            8,
            "process 71 has 70.25 GiB; wait for the other process, or end it, or choose another GPU with "
            "--env CUDA_VISIBLE_DEVICES=NUMBER",
        ),
    ],
)
def test_full_memory_names_the_gpu_and_its_other_users(users: list[GpuUser], gpus: int, said: str) -> None:
    assert hint_about(full(OTHER), users=users, there=gpus) == f"GPU 0 {IS_FULL}, {said}"


def test_a_rank_that_fills_a_gpu_alone_gets_a_remedy_for_its_program() -> None:
    assert (
        hint_about(full()) == f"GPU 0 {IS_FULL}; a smaller batch, activation checkpointing or FSDP needs less"
    )
    fragments = "12.40 GiB of it is in fragments: --env PYTORCH_ALLOC_CONF=expandable_segments:True"
    assert hint_about(full(fragments="12.40 GiB")).endswith(fragments)


def test_a_gpu_has_the_number_that_the_host_gives_it() -> None:
    named = {value: hint_about(full(device=1), env=(("CUDA_VISIBLE_DEVICES", value),)) for value in _VISIBLE}
    assert {value: said.partition(" of ")[0] for value, said in named.items()} == _VISIBLE


_VISIBLE = {"6, 3": "GPU 3", "5": "GPU 1", "GPU-aa,GPU-bb": "GPU 1", "": "GPU 1"}


def test_a_leased_gpu_has_the_number_that_the_host_gives_it() -> None:
    got = tuple(Device(index, f"GPU-{index}") for index in (5, 7))
    for mig in (False, True):  # by numbers, by UUIDs
        lease = Lease("nvidia", ready=True, all=8, mig=mig, got=got, taken=())
        assert hint_about(full(device=1), leases={"node1": lease}).startswith("GPU 7 of node1 is full")


def test_text_of_a_program_that_only_resembles_torchs_is_no_error() -> None:
    assert hint_about("CUDA out of memory. Tried to allocate 1.2.3 GiB\n").startswith(
        "a GPU of node1 is full"
    )
    odd = full(fragments="1..2 TiB").replace("79.19", "7.9.1")
    assert hint_about(odd).startswith("GPU 0 of node1 is full")
    assert hint_about("CUDA out of memory\n") == ""


# -- errors of CUDA and NCCL --

KERNEL = (
    "/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:111: operator(): block: [0,0,0], thread: [0,0,0] "
    'Assertion `-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.\n'
)
ASSERT = "torch.AcceleratorError: CUDA error: device-side assert triggered\n"
NCCL = "ProcessGroupNCCL.cpp:94, unhandled system error (run with NCCL_DEBUG=INFO), NCCL version 2.28\n"
FULL_FOR_NCCL = "no memory is left for NCCL on a GPU of node1: a smaller batch, or fewer groups"


@pytest.mark.parametrize(
    ("tail", "said"),
    [
        ((ASSERT, *HELP), LATE),
        ((KERNEL, ASSERT, *HELP), f"an assertion of a kernel failed (index out of bounds); {LATE}"),
        (("RuntimeError: CUDA error: an illegal memory access was encountered\n", *HELP), LATE),
        (("RuntimeError: CUDA error: misaligned address\n",), LATE),
        (("RuntimeError: CUDA error: unspecified launch failure\n",), LATE),
        (
            ("torch.AcceleratorError: CUDA error: out of memory\n", *HELP),
            "a GPU of node1 is full: nvidia-smi there shows the processes that use it",
        ),
        (
            ("RuntimeError: CUDA error: no kernel image is available for execution on the device\n", *HELP),
            "torch on node1 is built for other GPUs; muster check compares versions",
        ),
        (
            ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\n", *HELP),
            "a process has a GPU of node1 alone: nvidia-smi there shows it",
        ),
        ((f"DistBackendError: NCCL error in: {NCCL}", "ncclSystemError: System call failed\n"), DEBUG),
        (
            (
                f"NCCL error in: {NCCL}",
                "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 61000\n",
            ),
            "two ranks use one GPU, which NCCL refuses; start one rank for each GPU: --slots gpus",
        ),
        (
            (
                f"NCCL error in: {NCCL}",
                "Error while creating shared memory segment /dev/shm/nccl-x (size 9)\n",
            ),
            "NCCL needs more of /dev/shm of node1: free it, or --env NCCL_SHM_DISABLE=1",
        ),
        ((f"NCCL error in: {NCCL}", "Cuda failure 2 'out of memory'\n"), FULL_FOR_NCCL),
        ((f"NCCL error in: {NCCL}", "Cuda failure 'out of memory'\n"), FULL_FOR_NCCL),
        (("RuntimeError: an illegal value\n",), ""),
        (("my CUDA errors are few\n",), ""),
    ],
)
def test_an_error_of_cuda_or_nccl_has_its_remedy(tail: tuple[str, ...], said: str) -> None:
    assert hint_about("Traceback (most recent call last):\n", *tail) == said


def test_a_remedy_that_the_launch_has_already_is_not_repeated() -> None:
    assert hint_about(ASSERT, env=(("CUDA_LAUNCH_BLOCKING", "1"),)) == ""
    assert hint_about(f"NCCL error in: {NCCL}", env=(("NCCL_DEBUG", "WARN"),)) == ""


# -- a GPU that a rank does not see --

NONE = "RuntimeError: No CUDA GPUs are available\n"
SEES, CHOSE = "rank 1 does not see", "rank 1 chose a GPU that does not exist"
HOST = "on the host; muster check examines the driver"
CHOOSE = "start a rank for each GPU with --slots gpus, or choose by LOCAL_RANK % torch.cuda.device_count()"


@pytest.mark.parametrize(
    ("line", "gpus", "env", "said"),
    [
        (NONE, 1, "", f"{SEES} the GPU of node1: the launch has --gpus 0 or --env CUDA_VISIBLE_DEVICES="),
        (
            NONE,
            8,
            None,
            f"{SEES} the 8 GPUs of node1: look at CUDA_VISIBLE_DEVICES in the program and {HOST}",
        ),
        (NONE, 8, "-1", f"{SEES} the 8 GPUs of node1: the launch has --env CUDA_VISIBLE_DEVICES=-1"),
        (
            "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!\n",
            8,
            None,
            f"{SEES} the 8 GPUs of node1: look at CUDA_VISIBLE_DEVICES in the program and {HOST}",
        ),
        (
            "AssertionError: Torch not compiled with CUDA enabled\n",
            1,
            None,
            f"{SEES} the GPU of node1: its torch is built for CPUs; muster check compares versions",
        ),
        (
            "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!\n",
            0,
            None,
            'NCCL is for GPUs, and node1 has none: init_process_group("gloo")',
        ),
        (
            "torch.AcceleratorError: CUDA error: invalid device ordinal\n",
            2,
            None,
            f"{CHOSE}: node1 has 2 GPUs, for 4 ranks; {CHOOSE}",
        ),
        (
            "torch.AcceleratorError: CUDA error: invalid device ordinal\n",
            8,
            "0",
            f"{CHOSE}: CUDA_VISIBLE_DEVICES is 0, for 4 ranks; {CHOOSE}",
        ),
    ],
)
def test_a_rank_that_sees_no_gpu_is_told_why(line: str, gpus: int, env: str | None, said: str) -> None:
    given: dict[str, Any] = {} if env is None else {"env": (("CUDA_VISIBLE_DEVICES", env),)}
    assert hint_about(line, there=gpus, **given) == said
