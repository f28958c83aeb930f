"""Runs a program of muster.train as an ordinary job, and returns the output of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...core.connect.pipe import OpenPipe
from ...core.hosts.hostfile import Host
from ...core.job.feature import Feature
from ...core.job.job import Job
from ...core.job.result import LaunchResult
from ...core.job.run_folder import RunFolder
from ...core.plan.spec import LaunchSpec
from ..all_features import features_of

PROGRAMS = "muster.deploy.features.bench.programs"
"""The package that the ranks run."""
MOST_PRINTED = 16 << 20
"""Bytes of a rank's output that are read; the programs print less, also with thousands of hosts."""


@dataclass(frozen=True)
class BenchmarkRun:
    """A finished benchmark: its result, its folder, and the host and output of each rank."""

    result: LaunchResult
    folder: RunFolder
    hosts: tuple[str, ...]
    printed: dict[int, str]

    @property
    def job(self) -> str:
        """The id of its job."""
        return self.result.plan.spec.job


def one_rank_each(hosts: Sequence[Host]) -> tuple[Host, ...]:
    """The hosts with one slot each."""
    return tuple(replace(host, slots=1, slots_by_default=False) for host in hosts)


def run(  # the parts of a job
    spec: LaunchSpec,
    open_pipe: OpenPipe,
    runs: Path,
    features: Sequence[Feature],
) -> BenchmarkRun:
    """Run the job to its end. Its folder in `runs` is like that of any other job."""
    folder = RunFolder(runs, spec.job, max_log=spec.max_log)
    result = Job(spec, open_pipe, folder, features_of(spec, *features)).run()
    placement = sorted((place.rank, host.host.name) for host in result.plan.hosts for place in host.ranks)
    printed = {rank: _head_of(folder.log_of(rank, host, "out")) for rank, host in placement}
    return BenchmarkRun(result, folder, tuple(host for _, host in placement), printed)


def _head_of(path: Path) -> str:
    """The output of a rank; empty if it printed nothing."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_PRINTED).decode(errors="replace")
    except FileNotFoundError:
        return ""
