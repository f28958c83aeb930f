"""Collectives, ranks and lines of code as text for people."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...core.hosts.host_sample import GpuSample
from ...core.text.fold import fold
from ...core.text.terminal import harmless
from ...core.text.text import count, describe_code, percent, size, span
from .messages import SETUP, Evidence, FileLock, ProcessState, RecordedCall, StackLine
from .positions import Rank
from .stall import IDLE_GPU

BUSY = 0.5  # cores
BUSY_GPU = 0.5  # of the time
SWAPPING = 20.0  # pages a second that come from the disk
SAVES = "saves or loads a checkpoint"
# The activity of a rank, by a file in the stack above the user's own line.
_ACTIVITIES = (
    ("torch/utils/data", "reads data"),
    ("torch/serialization", SAVES),
    ("torch/distributed/checkpoint", SAVES),
    ("subprocess.py", "waits for a program that it started"),
    ("multiprocessing/", "waits for another of its processes"),
    ("concurrent/futures", "waits for another thread"),
    ("queue.py", "waits for another thread"),
    ("threading.py", "waits for another thread"),
    ("pdb.py", "is in a debugger"),
    ("bdb.py", "is in a debugger"),
    ("http/", "waits for the network"),
    ("urllib", "waits for the network"),
    ("socket.py", "waits for the network"),
    ("torch/autograd", "computes gradients"),
    ("torch/cuda/", "waits for its GPU"),
)


def operation(entry: RecordedCall, *, shape: bool = False) -> str:
    """`all_reduce #812 of group 0 (25 MiB, train.py:88)`, `recv from rank 3 (train.py:9)`."""
    details = [size(entry.bytes)] if entry.bytes else []
    if shape and entry.dtype:
        details = [f"{entry.elements} x {harmless(entry.dtype)}"]
    details += [harmless(entry.where)] if entry.where else []
    shown = f" ({', '.join(details)})" if details else ""
    op = harmless(entry.op)
    if entry.kind == "message":
        way = "from" if entry.op.endswith("recv") else "to"
        return f"{op} {way} {f'rank {entry.peer}' if (entry.peer or 0) >= 0 else 'any rank'}{shown}"
    return (
        f"{op}{shown}"
        if entry.group == SETUP
        else f"{op} #{entry.seq} of group {harmless(entry.group)}{shown}"
    )


def named(ranks: Sequence[Rank]) -> str:
    """`rank 6 on node4`, `ranks 0-5`."""
    host = f" on {harmless(ranks[0].host)}" if len(ranks) == 1 and ranks[0].host else ""
    return f"{span(sorted(rank.number for rank in ranks))}{host}"


def process_problem(rank: Rank) -> str:
    """Why a rank does not come, if its process shows it; else empty."""
    evidence = rank.evidence
    if rank.ended_with_job:
        return ""
    if evidence is None and rank.answered:
        return "is not running"
    if evidence is None:
        return f"cannot be asked: {harmless(rank.host)} does not answer"
    if evidence.end:
        if evidence.end.out_of_memory:
            return "is gone: out of memory, the kernel chose it"
        return f"is gone: it ended with {describe_code(evidence.end.code)}"
    return _of_process(evidence.process) if evidence.process else "is gone"


def _of_process(process: ProcessState) -> str:
    """`is stopped (SIGSTOP)`, `is in the kernel (D, nfs_wait)`, `is swapping (...)`; else empty."""
    if process.state == "T":
        return "is stopped (SIGSTOP)"
    if process.state == "D" and process.faults < SWAPPING:
        waits_in = process.waits_in if process.waits_in.strip("0") else "a disk or network file system?"
        return f"is in the kernel (D, {harmless(waits_in)})"
    if process.swapped and process.faults >= SWAPPING:
        return f"is swapping ({size(process.swapped)} on the disk, {process.faults:.0f} pages a second)"
    return ""


def position(rank: Rank) -> str:
    """Where a rank is, or why it does not come."""
    if rank.ended_with_job:
        return "ended with the job, so its stack is unknown"
    return process_problem(rank) or (doing(rank.evidence) if rank.evidence else "")


def doing(evidence: Evidence) -> str:
    """`is in read_shard (loader.py:40)`, `reads data, in next_batch (train.py:12)`."""
    if evidence.error and not evidence.frames:
        return f"cannot be read ({harmless(evidence.error)})"
    at = own_line(evidence.frames)
    if at is None:
        return "runs no Python"
    above = evidence.frames[: evidence.frames.index(at)]
    activity = next((text for sign, text in _ACTIVITIES if any(sign in line.file for line in above)), "")
    process = evidence.process or ProcessState(0, "S")
    if process.file_lock:
        activity = f"waits for the lock of {_lock(process.file_lock)}"
    elif not activity and process.busy >= BUSY:
        activity = "computes"
    if process.busy < BUSY:
        activity += _awaited_child(process, activity)
    ends = "" if process.busy >= BUSY else _ends(process)
    place = f"{activity}, in {location(at)}" if activity else f"is in {location(at)}"
    return place + _of_gpus(evidence.gpus) + ends


def _of_gpus(gpus: Sequence[GpuSample]) -> str:
    """`, while its GPU is busy`; a kernel that does not end, and one of NCCL that waits, keep a GPU busy."""
    shares = [gpu.utilisation for gpu in gpus if gpu.utilisation is not None]
    if not shares or IDLE_GPU <= max(shares) < BUSY_GPU:
        return ""
    its = "its GPU is" if len(gpus) == 1 else "its GPUs are"
    return f", while {its} {'busy' if max(shares) >= BUSY_GPU else 'idle'}"


def _lock(lock: FileLock) -> str:
    """`/data/index.lock, which rank 0 has`."""
    holder = f"process {lock.pid} ({harmless(lock.program)})"
    if lock.rank is not None:
        holder = f"rank {lock.rank}"
    elif not lock.pid:
        holder = "a process of another container or host"
    return f"{harmless(lock.path) or 'a file'}, which {holder} has"


def _awaited_child(process: ProcessState, activity: str) -> str:
    """The only process of a rank that waits for one, as ` (process 123: sleep 1000)`; else empty."""
    running = [child for child in process.children if child.code is None]
    if len(running) != 1 or not any(word in activity for word in ("processes", "program")):
        return ""
    return f" (process {running[0].pid}: {harmless(running[0].program)})"


def _ends(process: ProcessState) -> str:
    """The processes of a rank that have ended, and for which it has not waited yet."""
    return "".join(
        f"; its process {child.pid} ({harmless(child.program)}) has ended: {describe_code(child.code)}"
        for child in process.children
        if child.code is not None
    )


def own_line(frames: Sequence[StackLine]) -> StackLine | None:
    """The innermost line of the user's project; without one, of code other than torch and Python's own."""
    for line in frames:
        if line.own and not line.file.startswith("<"):
            return line
    others = [line for line in frames if "torch/" not in line.file and not line.file.startswith("<")]
    return others[0] if others else (frames[0] if frames else None)


def stack_line(evidence: Evidence) -> str:
    """`train.py:88`: the line of a rank by its stack; empty without one."""
    line = own_line(evidence.frames)
    return f"{line.file}:{line.line}" if line else ""


def location(line: StackLine) -> str:
    """`read_shard (loader.py:40)`."""
    return harmless(f"{line.function} ({line.file}:{line.line})")


def plural(numbers: Sequence[int], text: str) -> str:
    """`are in f (a.py:3)` for several ranks, in place of `is in f (a.py:3)`: the first word is a verb."""
    if len(numbers) == 1:
        return text
    verb, space, rest = text.partition(" ")
    rest = re.sub(r"^or (\w+)s ", r"or \1 ", rest)  # saves or loads
    return {"is": "are", "was": "were", "has": "have"}.get(verb, verb.removesuffix("s")) + space + rest


def evidence_lines(ranks: Sequence[Rank], last: dict[int, RecordedCall | None]) -> list[str]:
    """The evidence of each rank in a line, equal ranks together; the odd ones last."""
    lines = {rank.number: _evidence_line(rank, last.get(rank.number)) for rank in ranks}
    return [f"{span(numbers)}: {line}" for numbers, line in fold(lines.items())]


def _evidence_line(rank: Rank, last: RecordedCall | None) -> str:
    evidence = rank.evidence
    if evidence is None:
        return process_problem(rank)
    parts = [position(rank)]
    if last:
        state = {"i": "in it", "a": "begun", "d": "done", "f": "failed"}[last.state]
        parts.append(f"last {operation(last)}, {state}")
    if evidence.missing:
        parts.append(f"no record: {harmless(evidence.missing)}")
    if process := evidence.process:
        parts.append(
            f"state {harmless(process.state)}, {size(process.resident)}, {count(process.threads, 'thread')}"
        )
    for gpu in evidence.gpus:
        used = f", {size(gpu.memory)} of {size(gpu.memory_total)}" if gpu.memory and gpu.memory_total else ""
        parts.append(f"GPU {gpu.index} {percent(gpu.utilisation or 0.0)} busy{used}")
    return "; ".join(parts)
