"""Adds the processes that the kernels of the hosts killed for lack of memory to the result of a job.

The end of a rank names such a kill itself. Workers of data loaders and pools, and other programs that a rank
starts, are killed without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...core.connect.fanout import ask_every
from ...core.connect.requests.request import Request
from ...core.decode import lazy_dataclass
from ...core.hosts.bounds import Bytes, Count
from ...core.job.feature import Attempt, Feature
from ...core.job.result import Finding, LaunchResult
from ...core.text.fold import fold, fold_names
from ...core.text.text import size


@lazy_dataclass(frozen=True)
class MemoryKills:
    """The processes of a host that the kernel has killed for lack of memory, without those of ranks.

    `limit`: of their cgroup, in bytes.
    """

    kills: Count
    limit: Bytes | None


MEMORY_KILLS = Request("memory_kills", MemoryKills)


ASK_SECONDS = 2.0


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
        answers = ask_every(attempt.answering, MEMORY_KILLS, ASK_SECONDS).results
        kills = {
            name: answers[name]
            for name in sorted(answers, key=lambda name: name != first)
            if answers[name].kills
        }
        return with_kills(result, kills)


def with_kills(result: LaunchResult, kills: Mapping[str, MemoryKills]) -> LaunchResult:
    """The result with these kills. After a lack of memory, uneven data is a consequence."""
    return result.having(MemoryFinding(kills), early=() if kills else result.early)
