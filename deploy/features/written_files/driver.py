"""Adds the files that a program wrote into the job's folder on each host to the result of the job."""

from __future__ import annotations

import dataclasses

from ...core.connect.fanout import ask_every
from ...core.connect.requests.launch import OUTPUTS, Written
from ...core.job.feature import Attempt, Feature
from ...core.job.result import LaunchResult

ASK_SECONDS = 5.0


class WrittenFiles(Feature):
    """The verdict does not wait long for a host. A folder that hosts share counts once."""

    def ended(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """Ask the hosts that still answer."""
        if not attempt.is_last:
            return result
        by_folder: dict[str, tuple[str, Written]] = {}
        for name, answer in ask_every(attempt.answering, OUTPUTS, ASK_SECONDS).results.items():
            if any(files.files or files.more for files in (answer.beside, answer.out)):
                by_folder.setdefault(answer.folder, (name, answer))
        return dataclasses.replace(result, written=dict(by_folder.values()))
