"""Adds the kernel's messages of a failed job's hosts to its result."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ..common.clock import now
from ..common.runs import STOPS
from ..connect.cluster import Cluster
from ..connect.fanout import ask_every
from ..connect.requests.kernel import KERNEL_MESSAGES
from ..launch.result import KernelLine, LaunchResult

ASK_SECONDS = 5.0
OWN = frozenset({*STOPS, "port", "placement"})
"""Failures that no hardware causes."""


def with_kernel_messages(result: LaunchResult, cluster: Cluster, since: float) -> LaunchResult:
    """The result with the messages since this time, and the hosts that do not let them be read.

    Those of the host that failed first come first; then in the order of time.
    """
    failure = result.failure
    if failure is None or failure.kind in OWN:
        return result
    channels = {
        name: channel
        for name, channel in cluster.channels.items()
        if name not in cluster.silent and not channel.ended
    }
    seconds = now() - since
    answers = ask_every(channels, KERNEL_MESSAGES, ASK_SECONDS, lambda host: {"seconds": seconds})

    def lines() -> Iterator[KernelLine]:
        for host, answer in answers.results.items():
            for message in answer.messages:
                yield KernelLine(host, now() - message.ago, message.kind, message.text)

    found = sorted(lines(), key=lambda line: (line.host != failure.host, line.at))
    unread = {host: answer.unread for host, answer in answers.results.items() if answer.unread}
    unread |= {host: error.reason for host, error in answers.errors.items()}
    unread |= dict.fromkeys(cluster.channels.keys() - channels.keys(), "it does not answer")
    return dataclasses.replace(result, kernel=tuple(found), kernel_unread=unread)
