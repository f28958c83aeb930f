"""Adds the files that a program wrote into the job's folder on each host to the result of the job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ...core.connect.fanout import ask_every
from ...core.connect.requests import Request, WrittenFiles
from ...core.content.messages import FolderMark
from ...core.decode import lazy_dataclass
from ...core.errors import MusterError, lines_of
from ...core.job.feature import Attempt, Feature
from ...core.job.result import Finding, LaunchResult
from ...core.text.fold import fold, fold_names
from ...core.text.text import count, size
from ...core.wire.paths import JobPaths


@lazy_dataclass(frozen=True)
class Written:
    """The files that the program of a job has written on a host: beside the code, and into $MUSTER_OUT.

    `folder` is equal on hosts that share the job's folder; None if a host cannot tell.
    """

    beside: WrittenFiles
    out: WrittenFiles
    folder: FolderMark | None


OUTPUTS = Request("outputs", Written)
ASK_SECONDS, GONE = 5.0, "it did not answer any more"
MOST_GROUPS = 4
"""Groups of hosts whose files beside the code are named."""


@dataclass(frozen=True)
class WrittenFinding(Finding):
    """The files that its program wrote into the job's folder, by host."""

    written: Mapping[str, Written]
    unsearched: Mapping[str, str | MusterError] = field(default_factory=dict)
    """The hosts on which there may be more of them, each with the reason."""

    def lines(self, result: LaunchResult) -> Iterator[str]:
        yield from self._outputs(result)
        yield from self._beside(result)
        yield from (f"not searched for files: {line}" for line in lines_of(self.unsearched.items()))

    def _outputs(self, result: LaunchResult) -> Iterator[str]:
        """`3 files, 12 MiB in ~/.muster/jobs/JOB/out on node[1-3]`, one line for hosts with equal outputs."""
        folder = JobPaths.of("~", result.plan.spec.job).out
        for names, left in fold((host, written.out) for host, written in self.written.items()):
            if left.files:
                more = "more than " if left.more else ""
                files = f"{more}{count(left.files, 'file')}, {size(left.bytes)}"
                yield f"out: {files} in {folder} on {fold_names(names)}"

    def _beside(self, result: LaunchResult) -> Iterator[str]:
        """`checkpoints/last.pt and 3 more, 44 MiB on node1; muster get JOB fetches them; ...`."""
        found = [(host, written.beside) for host, written in self.written.items()]
        wrote = [(host, files) for host, files in found if files.files or files.more]
        groups = [*fold(wrote)]
        listed = [f"{files.described} on {fold_names(names)}" for names, files in groups[:MOST_GROUPS]]
        if others := sum(len(names) for names, _ in groups[MOST_GROUPS:]):
            listed.append(f"others on {count(others, 'more host')}")
        if wrote:
            it = "it" if [files.files for _, files in wrote] == [1] else "them"
            get = f"muster get {result.plan.spec.job} fetches {it}"
            yield f"written beside the code: {', '.join(listed)}; {get}; the next launch starts without {it}"

    def as_json(self) -> Mapping[str, Any]:
        files = self.written.items()
        return {
            "written": [
                {"host": host, "beside": asdict(left.beside), "out": asdict(left.out)} for host, left in files
            ]
        }


class WrittenFilesOfHosts(Feature):
    """The verdict does not wait long for a host. A folder that hosts share counts once."""

    def __init__(self) -> None:
        self._answers: dict[str, Written] = {}
        self._errors: dict[str, MusterError] = {}

    def ended(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """Ask the hosts that still answer and that the next attempt does not use."""
        leaving = {
            name: channel for name, channel in attempt.answering.items() if name not in attempt.next_hosts
        }
        outcomes = ask_every(leaving, OUTPUTS, ASK_SECONDS)
        self._answers |= outcomes.results
        self._errors |= outcomes.errors
        return self.over(result) if attempt.is_last else result.having(WrittenFinding({}))

    def over(self, result: LaunchResult) -> LaunchResult:
        """Add what the hosts had, also those that left the job before, and the hosts that did not tell."""
        by_folder: dict[str, tuple[str, Written]] = {}  # without a mark, each host counts
        for name, answer in self._answers.items():
            if any(files.files or files.more for files in (answer.beside, answer.out)):
                by_folder.setdefault(answer.folder or name, (name, answer))
        hosts = dict.fromkeys([*result.left_out, *(host.host.name for host in result.plan.hosts)])
        unsearched = {host: self._errors.get(host, GONE) for host in hosts if host not in self._answers}
        return result.having(WrittenFinding(dict(by_folder.values()), unsearched))
