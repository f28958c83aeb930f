"""What the commands of `muster bench` share: a benchmark is a job, and ends as a job does."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from ..bench import run as running
from ..bench.links import Links
from ..bench.run import Ran, job_of
from ..console.screen import Screen
from ..console.terminal import harmless_lines
from ..hosts.hostfile import Host
from ..jobs.job import Job
from ..jobs.verdict import verdict
from ..plan.launcher import LAUNCHERS, LauncherName
from . import options as request
from .command import Exit
from .ending import PAGE, end_with_page
from .inventory import Inventory, inventory_of, require_one_source, slurm_of
from .shared import HELP, NEW_RUN
from .shipped import TRAIN

BENCH_HELP = {
    **HELP,
    "slurm": "take hosts from Slurm: salloc's options in one argument; without a value, this allocation",
    "launcher": "mpirun (default), torchrun, or srun on hosts of Slurm",
    "backend": "auto (default), gloo, nccl or mpi: what carries the messages, as in a job",
    "network": "network of the ranks: a CIDR, or an interface of the first host (default: what all reach)",
    "runs": NEW_RUN,
    "json": "print JSON for programs",
}
KEPT_HELP = {
    "baseline": "compare with the result in this file (default: the first result of these hosts)",
    "keep": "make this result the one that later ones are compared with",
    "in-turn": "measure one after the other, not all at the same time",
    "short": "a tenth of the time and of the bytes",
}
LINKS, SWEEP, HOSTS = "links", "sweep", "host_speed"
"""The modules of muster.train.tools that are run."""
SHORT = {
    LINKS: ("--large", "1048576", "--seconds", "0.05", "--trips", "50"),
    HOSTS: ("--mebibytes", "32", "--seconds", "0.05"),
}
INTERRUPTED = "interrupted; the benchmark is ended on every host"


class FirstRank:
    """A watcher that prints the standard output of rank 0 as it comes, without a label."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def output(self, rank: int, host: str, stream: str, text: str) -> None:
        """Print what rank 0 prints."""
        if rank == 0 and stream == "out":
            self._stream.write(harmless_lines(text))
            self._stream.flush()

    def launcher(self, host: str, text: str) -> None:
        """Ignored: it is in the launcher's log."""

    def say(self, text: str) -> None:
        """Ignored: the screen has it."""


@dataclass(frozen=True)
class Settings:
    """How the job of a benchmark runs."""

    launcher: LauncherName
    backend: str
    network: str
    python: str


def settings_of(launcher: str, backend: str = "auto", network: str = "", python: str = "") -> Settings:
    """Settings from the values of options; `UsageError` for a wrong one, before Slurm is asked for hosts."""
    return Settings(
        request.one_of("--launcher", launcher, LAUNCHERS),
        request.one_of("--backend", backend, request.BACKENDS),
        request.network(network),
        python,
    )


@contextlib.contextmanager
def hosts_for(settings: Settings, hosts: str, slurm: str, include: str, exclude: str) -> Iterator[Inventory]:
    """The hosts of a benchmark: those of the hosts file, or those that Slurm gives."""
    slurm = slurm_of(settings.launcher, slurm)
    require_one_source(hosts, slurm)
    with inventory_of(hosts, slurm, include, exclude, settings.python) as inventory:
        yield inventory


def job_on(
    inventory: Inventory, hosts: Sequence[Host], tool: str, args: Sequence[str], settings: Settings
) -> Job:
    """The job of a benchmark's tool on these hosts."""
    job = job_of(request.new_job(), tool, args, hosts, TRAIN, settings.launcher, settings.backend)
    job = replace(job, spec=replace(job.spec, allocation=inventory.allocation))
    return replace(job, network=settings.network, python=settings.python, pythons=inventory.pythons)


def with_ranks(job: Job, np: int) -> Job:
    """The job with so many ranks; 0 for all slots."""
    return replace(job, spec=replace(job.spec, np=np or None))


def carry_out(job: Job, inventory: Inventory, runs: Path, *, out: bool = False, table: bool = False) -> Ran:
    """Run a benchmark's job to its end, with its folder and page. It may have failed.

    The driver's own lines go to standard error, so that standard output has the result alone; with `out`,
    there too. `table`: print what rank 0 prints.
    """
    screen = Screen(sys.stdout if out else sys.stderr, frozenset())
    try:
        ran = running.run(
            job,
            inventory.open_pipe,
            runs,
            (screen, *([FirstRank(sys.stdout)] if table else [])),
            inventory.blame,
            inventory.record(job.hosts),
        )
    finally:
        screen.close()
    end_with_page(ran.folder.path)
    return ran


def require_done(ran: Ran) -> None:
    """Print the verdict of a benchmark that failed, and exit as a launch does."""
    if ran.result.exit_status:
        sys.stderr.write(harmless_lines(f"{verdict(ran.result, ran.folder, PAGE)}\n"))
        raise Exit(code=ran.result.exit_status)


def write_links_page(path: Path, found: Sequence[Links]) -> None:
    """Write the page of links."""
    from ..view.page.links_page import links_page  # noqa: PLC0415  # only a page needs these modules
    from ..view.page.render import render  # noqa: PLC0415
    from ..view.page.write import write_page  # noqa: PLC0415

    write_page(render("links.html", page=links_page(found)), path)


def made() -> str:
    """When a result was made."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
