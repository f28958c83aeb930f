"""Hints about the end of a job, from the last lines of its ranks: what was wrong, with the remedy.

Hints about modules, files and disks are in file_hints.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from ...core.decode import MALFORMED, AtMost, from_json, lazy_dataclass
from ...core.hosts.bounds import Name, Pid, Rank
from ...core.hosts.host_facts import Facts
from ...core.hosts.host_sample import HostSample
from ...core.job.events import Event
from ...core.job.feature import Attempt, Feature
from ...core.job.result import LaunchResult
from ...core.text.fold import fold
from ...core.text.terminal import harmless
from ...core.text.text import clip, count, span
from ...core.wire.variables import is_foreign
from .file_hints import SharedMemory, full_disk, last_lines, left_behind, missing_module, sent_elsewhere

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


@lazy_dataclass(frozen=True)
class GpuUser:
    """A process that uses the GPU of a rank. `rank`: the rank of the job that it is."""

    pid: Pid
    user: Name = ""
    program: Name = ""
    rank: Rank | None = None


_Users = Annotated[tuple[GpuUser, ...], AtMost(64)]


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
        found: tuple[GpuUser, ...] = ()
        with contextlib.suppress(*MALFORMED):  # a host may send anything
            found = from_json(_Users, json.loads(end.found["gpu_users"] if end else "[]"))
        return {user.pid: user for user in found}


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
    visible = dict(rank.result.plan.spec.env).get(VISIBLE)
    if visible is not None:
        return f"{sees}: the launch has {'' if visible else '--gpus 0 or '}--env {VISIBLE}={visible}"
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


MOST_ERROR = 200
GLOO = 'init_process_group("gloo")'
# argparse's message, and that of click and typer.
_REFUSED = re.compile(r"(?:unrecognized arguments:|[Nn]o such option:?) (-[-\w]+)")
_NOT_BUILT = re.compile(r"Distributed package doesn't have (\w+) built in")
_NO_GPU = re.compile(r"ProcessGroupNCCL is only supported with GPUs")
_NO_KEY = re.compile(r"KeyError: '([A-Z][A-Z0-9_]*)'\s*$")
_NONE = re.compile(r"^TypeError: .*'?NoneType'?")
_GET = re.compile(r"(?:environ\.get|getenv)\(\s*[\"']([A-Z][A-Z0-9_]*)[\"']")
_BESIDE = {
    re.compile(r"Process \w[\w.:-]*:\s*$"): "a process",
    re.compile(r"Exception in thread "): "a thread",
    re.compile(r"(?:Exception ignored|Error) in atexit"): "an exit function",
}
"""The lines of Python above the traceback of what failed beside the program."""


class Hints(Feature):
    """Adds a hint about the failure, and one about what failed beside its program."""

    def __init__(self) -> None:
        self.shared: dict[str, SharedMemory] = {}
        """The most of /dev/shm that was in use on each host."""

    def begins(self, attempt: Attempt) -> None:
        """Of an earlier attempt nothing counts."""
        self.shared = {}

    def on_event(self, event: Event) -> None:
        """Samples show how full /dev/shm is."""
        if isinstance(event, HostSample) and event.shm is not None and event.shm_total:
            before = self.shared.get(event.host)
            most = max(event.shm, before.used if before else 0)
            self.shared[event.host] = SharedMemory(most, event.shm_total)

    def ended(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """Add them to the notes."""
        notes = [*result.notes, *failed_beside(result)]
        is_here = not attempt.folder.detached
        if result.failure and (text := hint(result, attempt.cluster.facts, self.shared, here=is_here)):
            notes.append(text)
        return dataclasses.replace(result, notes=tuple(notes))


def hint(
    result: LaunchResult, facts: Mapping[str, Facts], shared: Mapping[str, SharedMemory], *, here: bool
) -> str:
    """The first hint that fits the failure; empty for none.

    `shared`: /dev/shm of each host. `here`: the tree's folder is on this machine.
    """
    return (
        missing_module(result, facts, here=here)
        or refused_option(result)
        or failed_on_gpu(result, facts)
        or full_disk(result, shared)
        or missing_backend(result, facts)
        or foreign_variable(result)
        or (variable_of_shell(result) if here else "")
        or keyboard(result)
        or repository(result)
        or (left_behind(result) if here else "")
        or sent_elsewhere(result)
    )


def refused_option(result: LaunchResult) -> str:
    """A hint about an option after the script that the program does not have; else empty."""
    options = {argument.partition("=")[0] for argument in result.plan.spec.program.args}
    for line in last_lines(result):
        if (match := _REFUSED.search(line)) and match[1] in options:
            return f"the program got {match[1]}; an option of muster launch stands before the script"
    return ""


# -- backends --


def missing_backend(result: LaunchResult, facts: Mapping[str, Facts]) -> str:
    """A hint about a backend of torch.distributed that the host of the failure lacks; else empty."""
    host = result.failure.host if result.failure else None
    if host is None or host not in facts:
        return ""
    for line in last_lines(result):
        if match := _NOT_BUILT.search(line):
            return _not_built(match[1], host, facts[host], result.plan.spec.launcher)
        if _NO_GPU.search(line):
            return f"NCCL is for GPUs, and {host} has none: {GLOO}"
    return ""


def _not_built(backend: str, host: str, facts: Facts, launcher: str) -> str:
    torch = f"torch {facts.torch}" if facts.torch else "torch"
    what = f"{torch} on {host} was built without {backend}"
    if backend == "MPI":
        return f"{what}. Muster's MPI backend: {_own_mpi(facts, launcher)}"
    if backend != "NCCL":
        return f"{what}; every torch has Gloo: {GLOO}"
    if facts.gpus:
        return f"{what}: install a build for its {count(facts.gpus, 'GPU')} there, or {GLOO}"
    return f"{what}, which is for GPUs, and {host} has none: {GLOO}"


def _own_mpi(facts: Facts, launcher: str) -> str:
    """How a program uses Muster's MPI backend."""
    how = "from muster.train import register_mpi, and init_process_group(register_mpi())"
    needs = "" if facts.mpi4py else "; it needs mpi4py there"
    other = f", with --launcher mpirun; or, with torchrun, {GLOO}" if launcher == "torchrun" else ""
    return f"{how}{needs}{other}"


# -- variables --

_SET_BY = {
    **dict.fromkeys(("OMPI_", "PMIX_"), "mpirun"),
    **dict.fromkeys(("GROUP_", "ROLE_", "TORCHELASTIC_"), "torchrun"),
    "SLURM_": "srun",
    "PMI_": "MPICH's mpirun",
}
_SAME = {
    **dict.fromkeys(("LOCAL_RANK", "LOCALID"), "LOCAL_RANK"),
    **dict.fromkeys(("RANK", "PROCID"), "RANK"),
    "LOCAL_SIZE": "LOCAL_WORLD_SIZE",
    **dict.fromkeys(("WORLD_SIZE", "PMI_SIZE", "NTASKS", "NPROCS"), "WORLD_SIZE"),
}
"""The ends of such names, and the variables with the same value that every rank has."""


def foreign_variable(result: LaunchResult) -> str:
    """A hint about a variable that the program missed, and that only another launcher sets; else empty."""
    launcher = result.plan.spec.launcher
    for name in _missed([*last_lines(result)]):
        by = next((by for prefix, by in _SET_BY.items() if name.startswith(prefix)), launcher)
        if by != launcher:
            of_host = name.startswith("GROUP_") or "NODE_RANK" in name
            own = next((own for end, own in _SAME.items() if name.endswith(end) and not of_host), "")
            same = [f"with every launcher Muster sets {own}"] if own else []
            change = f"add --launcher {by}" if by in {"mpirun", "torchrun"} else ""
            other = [f"or {change}" if same else change] if change else []
            return "; ".join([f"only {by} sets {name}", *same, *other])
    return ""


def variable_of_shell(result: LaunchResult) -> str:
    """A hint about a variable that the program missed, and that this shell has; else empty."""
    own = dict(result.plan.spec.env)
    for name in _missed([*last_lines(result)]):
        if name in os.environ and name not in own and not is_foreign(name):
            return f"this shell has {name}, and ranks get none of its variables; add --env {name}"
    return ""


# -- what a rank does not have: a keyboard, and the repository --


_READS_KEYS = re.compile(r"bdb\.BdbQuit\b|EOFError: EOF when reading a line")
_READS_GIT = re.compile(
    r"fatal: not a git repository|InvalidGitRepositoryError|Command '(?:\['git',|git )"
    r"|No such file or directory: '(?:\.git[/']|git')"
)


def keyboard(result: LaunchResult) -> str:
    """A hint about a program that reads from a terminal, as `breakpoint()` and `input()` do; else empty."""
    if not any(map(_READS_KEYS.search, last_lines(result))):
        return ""
    return (
        "no keyboard reaches a rank, so breakpoint() and input() fail; while a job runs, "
        "muster eval JOB EXPRESSION and muster stacks JOB look into its ranks, and an editor can stop one: "
        "docs/how-to/editor.md"
    )


def repository(result: LaunchResult) -> str:
    """A hint about a program that asks git for its commit; else empty."""
    if not any(map(_READS_GIT.search, last_lines(result))):
        return ""
    if not result.plan.spec.tree.commit:
        return "a launch sends the files of the tree, and no .git"
    return 'a launch sends no .git; the commit is os.environ["MUSTER_GIT_COMMIT"] in every rank'


def _missed(lines: Sequence[str]) -> Iterator[str]:
    """The variables that a program missed: of a KeyError, or in the code of a traceback about None."""
    is_none = False
    for line in lines:  # the last one first
        if match := _NO_KEY.search(line):
            yield match[1]
        is_none = is_none or bool(_NONE.search(line))
        if is_none:
            yield from _GET.findall(line)


# -- what failed beside the program of a rank --


def failed_beside(result: LaunchResult) -> tuple[str, ...]:
    """Notes about ranks that ended with status 0 although a process, thread or exit function failed."""
    ends = sorted(result.ends.items())
    errors = ((rank, error) for rank, end in ends if end.code == 0 and (error := _error_beside(end.tail)))
    return tuple(f"{span(ranks)} ended with status 0, although {error}" for ranks, error in fold(errors))


def _error_beside(tail: Sequence[str]) -> str:
    """`a thread failed: OSError: full`, of the first that failed; without the name of a module."""
    lines = iter(line[:MOST_ERROR] for line in tail)
    for line in lines:
        what = next((what for sign, what in _BESIDE.items() if sign.match(line)), "")
        if what and next(lines, "").startswith("Traceback ("):
            error = next((line for line in lines if line.strip() and not line[0].isspace()), "")
            kind, colon, text = error.partition(":")
            error = harmless(f"{kind.rpartition('.')[2]}{colon}{text}".strip())
            return f"{what} failed: {clip(error, MOST_ERROR)}"
    return ""
