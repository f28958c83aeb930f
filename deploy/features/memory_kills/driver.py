"""Adds the processes that the kernels of the hosts killed for lack of memory to the result of a job.

The end of a rank names such a kill itself. Workers of data loaders and pools, and other programs that a rank
starts, are killed without a word.
"""

from __future__ import annotations

import dataclasses

from ...core.connect.fanout import ask_every
from ...core.connect.requests.launch import MEMORY_KILLS
from ...core.job.feature import Attempt, Feature
from ...core.job.result import LaunchResult

ASK_SECONDS = 2.0


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
        return dataclasses.replace(result, memory_kills=kills)
