"""The current stacks of all ranks of a job, with equal stacks folded.

py-spy reads them. It is a program in a single file that needs nothing on the host. The driver sends its own
copy to the stores of the hosts once, as it sends code. A host that has py-spy itself uses that.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from ..connect.answers import MISSING, STACKS, STORE, Stack
from ..connect.channel import Channel
from ..connect.fanout import on_every
from ..console.fold import fold
from ..console.terminal import harmless
from ..console.text import span

# An agent gives each py-spy 8 s. An agent that is slower than this is silent, and its host gets a problem.
STACKS_SECONDS = 12.0
_REMEDIES = {
    "Permission": "ptrace(2) is forbidden there: give the container the capability SYS_PTRACE",
    "Exec format": "py-spy of this machine is for another processor: pip install py-spy on that host",
    "No such file": "pip install py-spy here, or on that host",
}


@dataclass(frozen=True)
class Stacks:
    """The frames of each rank, innermost first; or a single line that says why there are none."""

    frames: Mapping[int, tuple[str, ...]]
    problems: Mapping[str, str]
    """The hosts that gave no stacks, and why."""
    unread: frozenset[int] = frozenset()
    """The ranks whose stack could not be read."""

    @property
    def odd(self) -> list[int]:
        """The readable ranks whose stack differs from that of most of them; none if there is no majority."""
        read = {rank: frames for rank, frames in self.frames.items() if rank not in self.unread}
        groups = fold(read.items())
        if not groups or 2 * len(groups[0][0]) <= len(read):
            return []
        return sorted(rank for ranks, _ in groups[1:] for rank in ranks)

    def __str__(self) -> str:
        lines = []
        for ranks, frames in fold(sorted(self.frames.items())):
            lines += [f"{span(ranks)}:", *(f"    {frame}" for frame in frames)]
        lines += [f"{host}: {why}" for host, why in self.problems.items()]
        return "".join(f"{line}\n" for line in lines)


def gather(job: str, channels: Mapping[str, Channel]) -> Stacks:
    """Ask all hosts at once for the stacks of a job."""
    tool = _own_py_spy()
    asked = on_every(channels, lambda host: _ask(job, channels[host], tool))
    by_rank = {int(rank): stack for stacks in asked.results.values() for rank, stack in stacks.items()}
    return Stacks(
        {rank: _frames(stack) for rank, stack in by_rank.items()},
        {host: error.reason for host, error in asked.errors.items()},
        frozenset(rank for rank, stack in by_rank.items() if stack.error),
    )


def _ask(job: str, channel: Channel, tool: bytes | None) -> Mapping[str, Stack]:
    digest = hashlib.sha256(tool).hexdigest() if tool else None
    if digest and tool and channel.ask(MISSING, digests=[digest], seconds=STACKS_SECONDS).missing:
        channel.ask(STORE, _archive(digest, tool), seconds=STACKS_SECONDS)
    answer = channel.ask(STACKS, job=job, host=channel.host, digest=digest, seconds=STACKS_SECONDS)
    return answer.stacks


def _frames(stack: Stack) -> tuple[str, ...]:
    if stack.error:
        error = harmless(stack.error)
        return (": ".join([error, *(remedy for sign, remedy in _REMEDIES.items() if sign in error)]),)
    # The frames of `python -m` itself are left out.
    program = takewhile(lambda frame: frame.file != "<frozen runpy>", stack.frames)
    return tuple(harmless(f"{frame.function} ({frame.file}:{frame.line})") for frame in program)


def _own_py_spy() -> bytes | None:
    """The py-spy of this environment, if this machine runs Linux as the hosts do."""
    path = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    return Path(path).read_bytes() if path and sys.platform == "linux" else None


def _archive(digest: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        member = tarfile.TarInfo(digest)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
