"""Adds the kernel's messages of a failed job's hosts to its result."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from ...core.connect.channel import Channel
from ...core.connect.cluster import Cluster
from ...core.connect.fanout import ask_every
from ...core.job.feature import Attempt, Feature
from ...core.job.result import KernelLine, LaunchResult
from ...core.wire.clock import now
from ...core.wire.runs import STOPS
from .messages import KERNEL_MESSAGES

ASK_SECONDS = 5.0
OWN = frozenset({*STOPS, "port", "placement"})
"""Failures that no hardware causes."""


class KernelMessages(Feature):
    """Adds the messages of the kernels since the job began, if it failed and does not start again."""

    def ended(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """Reading a journal takes seconds, for which no restart should wait."""
        return with_kernel_messages(result, attempt.cluster, attempt.began) if attempt.is_last else result


def with_kernel_messages(result: LaunchResult, cluster: Cluster, since: float) -> LaunchResult:
    """The result with the messages since this time, and the hosts that do not let them be read.

    Those of the host that failed first come first.
    """
    failure = result.failure
    if failure is None or failure.kind in OWN:
        return result
    channels = {
        name: channel
        for name, channel in cluster.channels.items()
        if name not in cluster.silent and not channel.ended
    }
    lines, unread = kernel_messages(channels, since)
    unread |= dict.fromkeys(cluster.channels.keys() - channels.keys(), "it does not answer")
    found = sorted(lines, key=lambda line: line.host != failure.host)
    return dataclasses.replace(result, kernel=tuple(found), kernel_unread=unread)


def kernel_messages(channels: Mapping[str, Channel], since: float) -> tuple[list[KernelLine], dict[str, str]]:
    """The messages of hosts since this time, the oldest first; and why those of other hosts are missing."""
    seconds = now() - since
    answers = ask_every(channels, KERNEL_MESSAGES, ASK_SECONDS, lambda host: {"seconds": seconds})

    def lines() -> Iterator[KernelLine]:
        for host, answer in answers.results.items():
            for message in answer.messages:
                yield KernelLine(host, now() - message.ago, message.kind, message.text)

    unread = {host: answer.unread for host, answer in answers.results.items() if answer.unread}
    unread |= {host: error.reason for host, error in answers.errors.items()}
    return sorted(lines(), key=lambda line: line.at), unread
