"""Hints about failures on a GPU: errors of CUDA and NCCL, a rank that sees no GPU.

The patterns are of messages of torch, CUDA and NCCL. The hint about full memory is in gpu_memory.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..console.terminal import harmless
from ..console.text import clip, count
from ..hosts.facts import Facts
from ..launch.result import LaunchResult
from .file_hints import last_lines
from .gpu_memory import VISIBLE, FailedRank, full_memory

BLOCKING = "CUDA_LAUNCH_BLOCKING"
_HIDDEN = re.compile(
    r"No CUDA GPUs are available|no CUDA-capable device is detected|Found no NVIDIA driver"
    r"|Torch not compiled with CUDA enabled|torch\.cuda\.is_available\(\) is False"
    r"|only supported with GPUs, no GPUs found"
)
_ORDINAL = re.compile(r"invalid device ordinal")
_LATE = re.compile(
    r"CUDA error: .*(?:device-side assert|illegal|unspecified launch failure|misaligned|invalid program)"
)
_ASSERTION = re.compile(r'Assertion `.*"([^"]+)"` failed')
MOST_ASSERTION = 80
_NCCL = re.compile(r"NCCL error|\bnccl\w+Error\b|\bncclInvalid\w+\b")
_FULL_FOR_NCCL = "no memory is left for NCCL on a GPU of {host}: a smaller batch, or fewer groups"
_REMEDIES = {
    "Duplicate GPU detected": "two ranks use one GPU, which NCCL refuses; {own_gpu}",
    "shm/nccl-": "NCCL needs more of /dev/shm of {host}: free it, or --env NCCL_SHM_DISABLE=1",
    "no socket interface found": "NCCL finds no network interface on {host}: choose one with --network",
    "Cuda failure 2 ": _FULL_FOR_NCCL,
    "Cuda failure 'out of memory'": _FULL_FOR_NCCL,
    "CUDA error: out of memory": "a GPU of {host} is full: nvidia-smi there shows the processes that use it",
    "no kernel image is available": "torch on {host} is built for other GPUs; muster env diff has versions",
    "device(s) is/are busy or unavailable": "a process has a GPU of {host} alone: nvidia-smi there shows it",
    "uncorrectable ECC error": "the memory of a GPU of {host} is damaged: muster check names it",
    "system not yet initialized": "the Fabric Manager of {host} does not run: muster check has the remedy",
    "driver version is insufficient": "the driver of {host} is older than torch needs: muster check",
}
"""Parts of messages that have one meaning, each with what it means and what to do."""


def failed_on_gpu(result: LaunchResult, facts: Mapping[str, Facts]) -> str:
    """A hint about a rank that failed on its GPU; else empty."""
    failure = result.failure
    if failure is None or failure.host is None or failure.rank is None:
        return ""
    gpus = facts[failure.host].gpus if failure.host in facts else 0
    rank = FailedRank(failure.rank, failure.host, gpus, result)
    lines = [*last_lines(result)]
    for hint in (full_memory, _hidden, _ordinal, _by_sign, _late, _nccl):
        for line in lines:
            if text := hint(rank, line):
                return text
    return ""


def _hidden(rank: FailedRank, line: str) -> str:
    match = _HIDDEN.search(line)
    if not match or not rank.gpus:  # hints.py describes a host without GPUs
        return ""
    of = "the GPU" if rank.gpus == 1 else f"the {rank.gpus} GPUs"
    sees = f"rank {rank.number} does not see {of} of {rank.host}"
    if "not compiled with CUDA" in line:
        return f"{sees}: its torch is built for CPUs; muster env diff compares versions"
    spec = rank.result.plan.spec
    if spec.gpus == 0:
        return f"{sees}: the launch has --gpus 0"
    if (visible := dict(spec.env).get(VISIBLE)) is not None:
        return f"{sees}: the launch has --env {VISIBLE}={visible}"
    return f"{sees}: look at {VISIBLE} in the program and on the host; muster check examines the driver"


def _ordinal(rank: FailedRank, line: str) -> str:
    if not _ORDINAL.search(line):
        return ""
    visible = rank.variable(VISIBLE)
    has = f"{rank.host} has {count(rank.gpus, 'GPU')}" if visible is None else f"{VISIBLE} is {visible}"
    ranks = sum(placed.host == rank.host for placed in rank.result.plan.ranks)
    return (
        f"rank {rank.number} chose a GPU that does not exist: {has}, for {count(ranks, 'rank')}; "
        "start a rank for each GPU with --slots gpus, or choose by LOCAL_RANK % torch.cuda.device_count()"
    )


def _by_sign(rank: FailedRank, line: str) -> str:
    text = next((text for sign, text in _REMEDIES.items() if sign in line), "")
    return text.format(host=rank.host, own_gpu=rank.own_gpu)


def _late(rank: FailedRank, line: str) -> str:
    if not _LATE.search(line) or rank.variable(BLOCKING) == "1":
        return ""
    failed = (match[1] for other in last_lines(rank.result) if (match := _ASSERTION.search(other)))
    error = clip(harmless(next(failed, "")), MOST_ASSERTION)
    return (
        f"{f'an assertion of a kernel failed ({error}); ' if error else ''}a GPU reports an error later than "
        f"its line, so the traceback may name another one; --env {BLOCKING}=1 has it name the line"
    )


def _nccl(rank: FailedRank, line: str) -> str:
    if not _NCCL.search(line) or rank.variable("NCCL_DEBUG"):
        return ""
    return "--env NCCL_DEBUG=INFO has NCCL print the cause"
