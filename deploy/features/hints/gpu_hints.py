"""Hints about failures on a GPU: errors of CUDA and NCCL, a rank that sees no GPU.

The patterns are of messages of torch, CUDA and NCCL. torch's message about full memory has the figures, and
the process of each user of that GPU; the agent of the host names those.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...core.connect.reports import GpuUser
from ...core.hosts.facts import Facts
from ...core.job.result import LaunchResult
from ...core.text.terminal import harmless
from ...core.text.text import clip, count
from ..leases.plan import LeaseOptions
from .file_hints import last_lines

VISIBLE = "CUDA_VISIBLE_DEVICES"
OWN_GPU = "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))"
_SIZE = r"(\d[\d.]* \w+)"
_FULL = re.compile(rf"CUDA out of memory\. Tried to allocate {_SIZE}")
_CAPACITY = re.compile(rf"GPU (\d+) has a total capac\w+ of {_SIZE} of which {_SIZE} is free")
_OWN = re.compile(rf"this process has {_SIZE} memory in use")
_OTHER = re.compile(rf"Process (\d+) has {_SIZE} memory in use")
_FRAGMENTS = re.compile(rf"and {_SIZE} is reserved by PyTorch but unallocated")
_ALLOCATOR = re.compile(r"PYTORCH_\w*ALLOC_CONF")
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
MOST_FRAGMENTS = 0.1
"""Of the memory of a GPU: from this share on, fragments may be why there is no room."""
MOST_NAMED = 8


@dataclass(frozen=True)
class FailedRank:
    """The rank that failed, its host, and the number of GPUs there."""

    number: int
    host: str
    gpus: int
    result: LaunchResult

    def variable(self, name: str) -> str | None:
        """A variable that the launch gives to the ranks of its host; None if it does not."""
        env = next((plan.env for plan in self.result.plan.hosts if plan.host.name == self.host), {})
        return env.get(name)

    @property
    def own_gpu(self) -> str:
        """How each rank of its host gets its own GPU."""
        ranks = sum(placed.host == self.host for placed in self.result.plan.ranks)
        enough = f"give each rank its own GPU: {OWN_GPU}"
        return enough if self.gpus >= ranks else "start one rank for each GPU: --slots gpus"

    @property
    def users(self) -> Mapping[int, GpuUser]:
        """The other processes that its last lines name, by their number."""
        end = self.result.ends.get(self.number)
        return {user.pid: user for user in end.gpu_users} if end else {}


def full_memory(rank: FailedRank, line: str) -> str:
    """`GPU 0 of node1 is full: rank 1 asked for 2.00 GiB, and ...`; empty for another line."""
    asked, capacity, own = _FULL.search(line), _CAPACITY.search(line), _OWN.search(line)
    if not asked:
        return ""
    gpu = f"GPU {_number(rank, int(capacity[1]))}" if capacity else "a GPU"
    wanted = f"rank {rank.number} asked for {asked[1]}"
    if capacity:
        wanted += f", of {capacity[2]} {capacity[3]} is free"
    shares = [f"it has {own[1]}"] if own else []
    others = [(rank.users.get(int(pid)), pid, memory) for pid, memory in _OTHER.findall(line)[:MOST_NAMED]]
    shares += [f"{_named(user, pid)} has {memory}" for user, pid, memory in others]
    remedy = _remedy(rank, [user for user, _, _ in others], line)
    return f"{gpu} of {rank.host} is full: {', '.join([wanted, *shares])}; {remedy}"


def _number(rank: FailedRank, device: int) -> str:
    """The number of a GPU on its host, for the number of a device among those that the rank sees."""
    visible = [number.strip() for number in (rank.variable(VISIBLE) or "").split(",")]
    numbers = visible if all(number.isdecimal() for number in visible) else []
    if not numbers:  # by UUID
        numbers = [str(number) for number in rank.result.plan.gpus.get(rank.host, ())]
    return numbers[device] if device < len(numbers) else str(device)


def _named(user: GpuUser | None, pid: str) -> str:
    """`rank 0`, `python3 of alice (process 71)`, `process 71`."""
    if user is None:
        return f"process {pid}"
    if user.rank is not None:
        return f"rank {user.rank}"
    return f"{clip(harmless(user.program), 40)} of {clip(harmless(user.user), 40)} (process {pid})"


def _remedy(rank: FailedRank, others: Sequence[GpuUser | None], line: str) -> str:
    if any(user and user.rank is not None for user in others):
        return rank.own_gpu
    if others:
        other = f", or choose another GPU with --env {VISIBLE}=NUMBER" if rank.gpus > 1 else ""
        return f"wait for the other process, or end it{other}"
    capacity, fragments = _CAPACITY.search(line), _FRAGMENTS.search(line)
    if capacity and fragments and _bytes(fragments[1]) >= MOST_FRAGMENTS * _bytes(capacity[2]) > 0:
        name = match[0] if (match := _ALLOCATOR.search(line)) else "PYTORCH_CUDA_ALLOC_CONF"
        return f"{fragments[1]} of it is in fragments: --env {name}=expandable_segments:True"
    return "a smaller batch, activation checkpointing or FSDP needs less"


def _bytes(text: str) -> float:
    """The bytes of `1.50 GiB`; 0 for any other text, as a program may print anything."""
    number, _, unit = text.partition(" ")
    return float(number) * _UNITS.get(unit, 1) if number.count(".") <= 1 else 0.0


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
    "no kernel image is available": "torch on {host} is built for other GPUs; muster check compares versions",
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
        return f"{sees}: its torch is built for CPUs; muster check compares versions"
    spec = rank.result.plan.spec
    if spec.of(LeaseOptions).gpus == 0:
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
    several = len(rank.result.plan.hosts) > 1
    bench = "; muster check --bench measures every link and host" if several else ""
    return f"--env NCCL_DEBUG=INFO has NCCL print the cause{bench}"
