"""A hint about the full memory of a GPU: how much is used, by whom, and what to do.

torch's message has the figures, and the process of each user of that GPU. The agent of the host names those.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..connect.reports import GpuUser
from ..console.terminal import harmless
from ..console.text import clip
from ..launch.result import LaunchResult

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
    if not numbers and (lease := rank.result.plan.leases.get(rank.host)):  # by UUID
        numbers = [str(each.index) for each in lease.got]
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
