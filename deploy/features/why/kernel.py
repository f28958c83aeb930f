"""What the kernels of the hosts say of a job: their messages, and what they killed for lack of memory.

The end of a rank names such a kill itself. Workers of data loaders and pools, and other programs that a rank
starts, are killed without a word.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from ...core.connect.channel import Channel
from ...core.connect.fanout import ask_every
from ...core.connect.requests import Request
from ...core.decode import AtMost, Like, lazy_dataclass
from ...core.hosts.bounds import Bytes, Count, Seconds
from ...core.job.feature import Attempt, Feature
from ...core.job.result import Finding, LaunchResult
from ...core.text.fold import fold, fold_names
from ...core.text.terminal import harmless
from ...core.text.text import clip, count, size
from ...core.wire.clock import now
from ...core.wire.job_folders import STOPS


@lazy_dataclass(frozen=True)
class KernelMessage:
    """A message, the seconds since then, its kind and its meaning (on_host/kernel_log.py)."""

    ago: Seconds
    kind: Annotated[str, Like(r"[a-z]{1,16}")]
    meaning: Annotated[str, AtMost(200)]
    text: Annotated[str, AtMost(400)]


@lazy_dataclass(frozen=True)
class KernelLines:
    """The messages of known kinds, the oldest first; `unread`: why there are none to read."""

    messages: Annotated[tuple[KernelMessage, ...], AtMost(64)]
    unread: Annotated[str, AtMost(400)]


KERNEL_MESSAGES = Request("kernel_messages", KernelLines)


ASK_SECONDS = 5.0
MOST_LINES, LONGEST_LINE = 4, 200
OWN = frozenset({*STOPS, "placement"})
"""Failures that no hardware causes."""


@dataclass(frozen=True)
class KernelLine:
    """A message of a host's kernel during the job."""

    host: str
    at: float
    """On the driver's clock, seconds since the epoch."""
    kind: str
    meaning: str
    """With the remedy."""
    text: str


@dataclass(frozen=True)
class KernelFinding(Finding):
    """The messages of the hosts' kernels, if the job failed: those of the failed host first."""

    messages: tuple[KernelLine, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    """The hosts whose messages could not be read, each with the reason."""

    def lines(self, result: LaunchResult) -> Iterator[str]:
        return (f"kernel: {line}" for line in kernel_lines(self.messages))

    def as_json(self) -> Mapping[str, Any]:
        return {
            "kernel": [asdict(line) for line in self.messages],
            "kernel_unread": [{"host": host, "why": why} for host, why in self.unread.items()],
        }


def kernel_lines(lines: Sequence[KernelLine]) -> Iterator[str]:
    """`node2, 14:03:11: the GPU has fallen off the bus: NVRM: Xid ...`, a line for each kind and host."""
    kinds: dict[tuple[str, str], list[KernelLine]] = {}
    for line in lines:
        kinds.setdefault((line.host, harmless(line.meaning)), []).append(line)
    for (host, meaning), (first, *others) in [*kinds.items()][:MOST_LINES]:
        clock = time.strftime("%H:%M:%S", time.localtime(first.at))
        more = f" (and {len(others)} more)" if others else ""
        yield f"{host}, {clock}: {meaning}: {clip(harmless(first.text), LONGEST_LINE)}{more}"
    if len(kinds) > MOST_LINES:
        yield f"{count(len(kinds) - MOST_LINES, 'kind')} more in result.json"


class KernelMessages(Feature):
    """Adds the messages of the kernels since the job began, if it failed and does not start again."""

    def ended(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """Reading a journal takes seconds, for which no restart should wait."""
        failure, channels = result.failure, attempt.answering
        if failure is None or failure.kind in OWN or not attempt.is_last:
            return result.having(KernelFinding())
        lines, unread = kernel_messages(channels, attempt.began)
        unread |= dict.fromkeys(attempt.cluster.channels.keys() - channels.keys(), "it does not answer")
        first = sorted(lines, key=lambda line: line.host != failure.host)
        return with_lines(result, first, unread)


def with_lines(
    result: LaunchResult, lines: Sequence[KernelLine], unread: Mapping[str, str] | None = None
) -> LaunchResult:
    """The result with these messages. After a lack of memory, uneven data is a consequence."""
    early = () if any(line.kind == "oom" for line in lines) else result.early
    return result.having(KernelFinding(tuple(lines), unread or {}), early=early)


def kernel_messages(channels: Mapping[str, Channel], since: float) -> tuple[list[KernelLine], dict[str, str]]:
    """The messages of hosts since this time, the oldest first; and why those of other hosts are missing."""
    seconds = now() - since
    answers = ask_every(channels, KERNEL_MESSAGES, ASK_SECONDS, lambda host: {"seconds": seconds})

    def lines() -> Iterator[KernelLine]:
        for host, answer in answers.results.items():
            for each in answer.messages:
                yield KernelLine(host, now() - each.ago, each.kind, each.meaning, each.text)

    unread = {host: answer.unread for host, answer in answers.results.items() if answer.unread}
    unread |= {host: error.reason for host, error in answers.errors.items()}
    return sorted(lines(), key=lambda line: line.at), unread


# -- processes that were killed for lack of memory --


@lazy_dataclass(frozen=True)
class MemoryKills:
    """The processes of a host that the kernel has killed for lack of memory, without those of ranks.

    `limit`: of their cgroup, in bytes.
    """

    kills: Count
    limit: Bytes | None


KILLS_SECONDS = 2.0
MEMORY_KILLS = Request("memory_kills", MemoryKills)


@dataclass(frozen=True)
class MemoryFinding(Finding):
    """The processes below the ranks that a kernel killed for lack of memory, by host."""

    kills: Mapping[str, MemoryKills]

    def causes(self, result: LaunchResult) -> Iterator[str]:
        """`the kernel killed 2 processes of node2 for lack of memory during the job (limit 1.5 GiB)`."""
        for hosts, kills in fold(self.kills.items()):
            processes = "a process" if kills.kills == 1 else f"{kills.kills} processes"
            of = f"of {'each of ' if len(hosts) > 1 else ''}{fold_names(hosts)}"
            limit = f" (limit {size(kills.limit)})" if kills.limit else ""
            yield f"the kernel killed {processes} {of} for lack of memory during the job{limit}"

    def lines(self, result: LaunchResult) -> Iterator[str]:
        """Of a job without a failure, the kills are notes."""
        return (f"note: {line}" for line in (() if result.failure else self.causes(result)))

    def as_json(self) -> Mapping[str, Any]:
        return {"memory_kills": [{"host": host, **asdict(kills)} for host, kills in self.kills.items()]}


class MemoryKillsOfHosts(Feature):
    """Adds the kills of each host, that of the failure first."""

    def ended(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """Ask the hosts that still answer."""
        first = result.failure.host if result.failure else None
        answers = ask_every(attempt.answering, MEMORY_KILLS, KILLS_SECONDS).results
        kills = {
            name: answers[name]
            for name in sorted(answers, key=lambda name: name != first)
            if answers[name].kills
        }
        return with_kills(result, kills)


def with_kills(result: LaunchResult, kills: Mapping[str, MemoryKills]) -> LaunchResult:
    """The result with these kills. After a lack of memory, uneven data is a consequence."""
    return result.having(MemoryFinding(kills), early=() if kills else result.early)
