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

    def __init__(self) -> None:
        self._answers: dict[str, Written] = {}

    def ended(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """Ask the hosts that still answer and that the next attempt does not use."""
        leaving = {
            name: channel for name, channel in attempt.answering.items() if name not in attempt.next_hosts
        }
        self._answers |= ask_every(leaving, OUTPUTS, ASK_SECONDS).results
        return self._with_files(result) if attempt.is_last else result

    def over(self, result: LaunchResult) -> LaunchResult:
        """Add what hosts had that left the job before its last attempt, and the hosts that were not asked."""
        return self._with_files(result)

    def _with_files(self, result: LaunchResult) -> LaunchResult:
        by_folder: dict[str, tuple[str, Written]] = {}
        for name, answer in self._answers.items():
            if any(files.files or files.more for files in (answer.beside, answer.out)):
                by_folder.setdefault(answer.folder, (name, answer))
        hosts = dict.fromkeys([*result.left_out, *(host.host.name for host in result.plan.hosts)])
        unsearched = tuple(host for host in hosts if host not in self._answers)
        return dataclasses.replace(result, written=dict(by_folder.values()), unsearched=unsearched)
