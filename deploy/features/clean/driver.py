"""Notes what the ranks of a job that failed or was stopped left in the memory of their hosts."""

from __future__ import annotations

import dataclasses

from ...core.connect.fanout import ask_every
from ...core.job.feature import Attempt, Feature
from ...core.job.result import LaunchResult
from ...core.text.fold import fold, fold_names
from ...core.wire.clock import now
from .messages import LEFT_MEMORY

ASK_SECONDS = 3.0


class LeftInMemory(Feature):
    """A program that ends normally removes its shared memory; a killed one cannot."""

    def ended(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """Ask the hosts that still answer."""
        if result.failure is None or not attempt.is_last:
            return result
        wanted = {"seconds": now() - attempt.began}
        answers = ask_every(attempt.answering, LEFT_MEMORY, ASK_SECONDS, lambda host: wanted)
        left = ((host, text) for host, answer in answers.results.items() if (text := answer.described))
        notes = [
            f"left in the memory of {fold_names(hosts)}: {text}; there: ls -l /dev/shm"
            for hosts, text in fold(left)
        ]
        return dataclasses.replace(result, notes=(*result.notes, *notes))
