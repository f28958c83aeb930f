"""Shared by the commands of `muster bench`: a benchmark is a job, and ends as a job does."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from ...cli.command import Exit
from ...cli.inventory import Inventory
from ...cli.launch import parts_of
from ...cli.launch_options import LaunchOptions
from ...cli.option_values import new_job
from ...cli.page_after_job import PAGE, end_with_page
from ...cli.prepared_launch import OnTerminal, job_here
from ...cli.shared import JSON, LAUNCHER, NEW_RUN, RUNS_FOLDER, TRAIN, SlurmOptions
from ...core.hosts.hostfile import Host
from ...core.job.events import Event, Output, Stage
from ...core.job.feature import Feature
from ...core.job.result import LaunchResult
from ...core.job.run_folder import RunFolder
from ...core.job.verdict import verdict
from ...core.plan.flags import flag
from ...core.plan.source_tree import Tree, of_package, with_files
from ...core.plan.spec import (
    ALL_GPUS,
    BACKENDS,
    DEFAULT_LAUNCHER,
    LAUNCHERS,
    LauncherName,
    LaunchSpec,
    Program,
    network,
)
from ...core.text.progress import Progress
from ...core.text.screen import Screen
from ...core.text.terminal import harmless_lines
from ...core.text.text import count, duration
from ...core.wire.users import own_name

PROGRAMS = "muster.deploy.features.bench.programs"
"""The package that the ranks run."""
MOST_PRINTED = 16 << 20
"""Bytes of a rank's output that are read; the programs print less, also with thousands of hosts."""


@dataclass(frozen=True)
class BenchOptions(SlurmOptions):
    """The flags of a benchmark, which runs as a job."""

    interrupted = "interrupted; the benchmark is ended on every host"
    groups: ClassVar = {
        "Hosts": "hosts include exclude slurm python",
        "Job": "np per_host launcher backend network runs",
        "Result": "json html",
    }

    launcher: LauncherName = flag(DEFAULT_LAUNCHER, LAUNCHER, "NAME", choices=LAUNCHERS)
    backend: str = flag(
        "auto",
        "auto (default), gloo, nccl or mpi: the backend of the messages, as in a job",
        "NAME",
        choices=BACKENDS,
    )
    network: str = flag(
        "",
        "network of the ranks: a CIDR, or an interface of the first host (default: one that all hosts reach)",
        "NETWORK",
        parse=network,
    )
    runs: str = flag(RUNS_FOLDER, NEW_RUN, "FOLDER")
    json: bool = flag(False, JSON)


@dataclass(frozen=True)
class HostsBenchOptions(BenchOptions):
    """The flags of a benchmark with one rank on each host."""

    in_turn: bool = flag(False, "measure one after the other, not all at the same time")
    short: bool = flag(False, "a tenth of the time and of the bytes")


LINKS, SWEEP, HOSTS = "links", "sweep", "host_speed"
"""The modules of programs/ that the benchmarks run."""
SHORT = {
    LINKS: ("--large", "1048576", "--seconds", "0.05", "--trips", "50"),
    HOSTS: ("--mebibytes", "32", "--matrix", "256", "--seconds", "0.05"),
}


class ResultCount(Feature):
    """Counts the results of the ranks, and shows the number after the stages of the launch."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._began, self._results = progress, time.monotonic(), 0

    def on_event(self, event: Event) -> None:
        """Count the lines: a rank prints one for each result. The last stage has no text of its own."""
        if isinstance(event, Output) and event.stream == "out":
            self._results += event.text.count("\n")
        elif isinstance(event, Stage):
            show = event.show
            self._progress.stage((lambda: show() or self._line()) if callable(show) else show)

    def _line(self) -> str:
        seconds = int(time.monotonic() - self._began)
        return f"measuring: {count(self._results, 'result')}, {duration(seconds)}"


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


def spec_of(
    inventory: Inventory, hosts: Sequence[Host], tool: str, args: Sequence[str], options: BenchOptions
) -> LaunchSpec:
    """The request of a benchmark on these hosts. It sends muster.train and programs/, and no working tree."""
    # Of benchmarks of hosts, the one rank of each measures all of its GPUs.
    gpus, allocation = ALL_GPUS if tool == HOSTS else None, inventory.allocation
    return LaunchSpec(
        job=new_job(),
        user=own_name(),
        program=Program(module=f"{PROGRAMS}.{tool}", args=tuple(args)),
        tree=Tree(TRAIN, ".", ()),
        library=with_files(
            of_package(TRAIN), Path(__file__).with_name("programs"), PROGRAMS.replace(".", "/")
        ),
        hosts=tuple(hosts),
        launcher=options.launcher,
        python=options.python,
        pythons=inventory.pythons,
        network=options.network,
        backend=options.backend,
    ).having(*parts_of(LaunchOptions(no_record=True, gpus=gpus, allocation=allocation)))


def run_benchmark(spec: LaunchSpec, inventory: Inventory, runs: Path, *, out: bool = False) -> BenchmarkRun:
    """Run a benchmark's job to its end, with its folder and page. It may have failed.

    The driver's own lines go to standard error, so that standard output has only the result; with `out`, they
    go to standard output.
    """
    screen = Screen(sys.stdout if out else sys.stderr, frozenset())
    try:
        with Progress() as progress:
            job = job_here(spec, inventory, runs, [OnTerminal(screen, progress), ResultCount(progress)])
            result = job.run()
    finally:
        screen.close()
    end_with_page(job.folder.path)
    placement = sorted((place.rank, host.host.name) for host in result.plan.hosts for place in host.ranks)
    printed = {rank: _head_of(job.folder.log_of(rank, host, "out")) for rank, host in placement}
    return BenchmarkRun(result, job.folder, tuple(host for _, host in placement), printed)


def _head_of(path: Path) -> str:
    """The output of a rank; empty if it printed nothing."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_PRINTED).decode(errors="replace")
    except FileNotFoundError:
        return ""


def require_done(ran: BenchmarkRun) -> None:
    """Print the verdict of a benchmark that failed, and exit as a launch does."""
    if ran.result.exit_status:
        sys.stderr.write(harmless_lines(f"{verdict(ran.result, ran.folder, PAGE)}\n"))
        raise Exit(code=ran.result.exit_status)


def made() -> str:
    """The time of a result: now."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
