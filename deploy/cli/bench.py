"""`muster bench links`: how fast the network between the hosts is, and which link is slow."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from json import dumps
from pathlib import Path

from invoke import Collection, Context, Exit

from ..bench import kept, links_text
from ..bench import run as running
from ..bench.links import Links, read
from ..bench.outliers import Slow, outliers, slower
from ..bench.run import Ran, job_of, one_rank_each
from ..console.screen import Screen
from ..console.terminal import harmless
from ..errors import UsageError
from ..hosts.hostfile import Host
from ..jobs.job import Job
from ..jobs.runner import Observer
from ..jobs.verdict import verdict
from ..plan.launcher import LAUNCHERS
from . import options as request
from .command import command
from .ending import PAGE, end_with_page
from .inventory import Inventory, of_file
from .shared import HELP, explained
from .shipped import TRAIN

_HELP = {
    **HELP,
    "launcher": "mpirun (default) or torchrun",
    "backend": "auto (default), gloo, nccl or mpi: what carries the messages, as in a job",
    "network": "network of the ranks: a CIDR, or an interface of the first host (default: what all reach)",
    "runs": "the folder in which to make the folder of this run (default: runs)",
    "json": "print JSON for programs",
}
INTERRUPTED = "interrupted; the benchmark is ended on every host"


@command(
    help={
        **_HELP,
        "baseline": "compare with the result in this file (default: the first one of these hosts)",
        "keep": "make this result the one that later ones are compared with",
        "in-turn": "measure one pair of hosts at a time, so that no two share a switch",
        "short": "a tenth of the time and of the bytes",
        "html": "also write a page with the heat maps to this file",
    },
)
def links(  # noqa: PLR0917  # fab makes a flag of each parameter
    context: Context,
    hosts: str = "hosts.txt",
    include: str = "",
    exclude: str = "",
    launcher: str = "mpirun",
    backend: str = "auto",
    network: str = "",
    baseline: str = "",
    keep: bool = False,
    in_turn: bool = False,
    short: bool = False,
    html: str = "",
    json: bool = False,
    runs: str = "runs",
    python: str = "",
) -> None:
    """Measure the link between every two hosts, both ways: latency and bandwidth. Slow links are named.

    It runs as a job with one rank on each host. The first result is kept beside the hosts file, in
    .muster/bench, and later ones are compared with it.
    """
    with explained(context, INTERRUPTED):
        if baseline and not Path(baseline).is_file():
            raise UsageError(f"--baseline: no file {baseline}")
        inventory = of_file(hosts, include, exclude, python)
        if len(inventory.hosts) < 2:
            raise UsageError(f"{hosts}: a link needs two hosts, here is one")
        args = [*(["--in-turn"] if in_turn else []), *(SHORT if short else [])]
        options = {"launcher": launcher, "backend": backend, "network": network, "python": python}
        job = job_on(inventory, one_rank_each(inventory.hosts), "links", args, **options)
        ran = carry_out(job, inventory, Path(runs), quiet=json)
        found, problems = read(job.spec.job, _now(), ran.hosts, ran.printed)
        slow = _both(found)
        worse, compared = _compare(found, Path(hosts), baseline, keep=keep)
        if html:
            write_links_page(Path(html), [found])
        if json:
            sys.stdout.write(dumps(links_text.as_json(found, slow, worse, problems), indent=2) + "\n")
        else:
            text = links_text.as_text(found, slow, worse, baseline=compared, problems=problems)
            sys.stdout.write(f"{text}{_kept(compared, worse)}")
        if problems:
            raise Exit(code=3)


SHORT = ("--large", "1048576", "--seconds", "0.05", "--trips", "50")


def job_on(
    inventory: Inventory,
    hosts: Sequence[Host],
    tool: str,
    args: Sequence[str],
    *,
    launcher: str,
    backend: str,
    network: str,
    python: str,
) -> Job:
    """The job of a benchmark's tool, from the values of options."""
    named = request.one_of("--launcher", launcher, LAUNCHERS)
    carrier = request.one_of("--backend", backend, request.BACKENDS)
    job = job_of(request.new_job(), tool, args, hosts, TRAIN, named, carrier)
    return replace(job, network=request.network(network), python=python, pythons=inventory.pythons)


def carry_out(
    job: Job, inventory: Inventory, runs: Path, *, quiet: bool = False, also: tuple[Observer, ...] = ()
) -> Ran:
    """Run a benchmark's job. If it fails, print its verdict as that of any other job, and exit."""
    screen = Screen(sys.stderr if quiet else sys.stdout, frozenset())
    try:
        ran = running.run(job, inventory.open_pipe, runs, (screen, *also))
    finally:
        screen.close()
    end_with_page(ran.folder.path)
    if ran.result.exit_status:
        screen.say(verdict(ran.result, ran.folder, PAGE))
        raise Exit(code=ran.result.exit_status)
    return ran


def _both(found: Links) -> tuple[Slow, ...]:
    return (*outliers(found, "bandwidth"), *outliers(found, "latency"))


def _compare(found: Links, hosts: Path, baseline: str, *, keep: bool) -> tuple[tuple[Slow, ...] | None, str]:
    """What is slower than in the baseline, and its name; None if there is nothing to compare with.

    The result is kept as the newest one, and as the baseline if there is none, or if `keep` asks for it.
    """
    folder = kept.folder_beside(hosts)
    path = Path(baseline) if baseline else kept.baseline_of(folder, "links", found.backend)
    before = kept.links_in(path)
    kept.keep(kept.newest_of(folder, "links", found.backend), found.as_json())
    if keep or before is None:
        kept.keep(path, found.as_json())
    if before is None:
        return None, str(path)
    worse = (*slower(found, before, "bandwidth"), *slower(found, before, "latency"))
    return worse, f"{path}, of {before.made}"


def _kept(path: str, worse: tuple[Slow, ...] | None) -> str:
    return "" if worse is not None else harmless(f"kept for comparison with later runs: {path}") + "\n"


def write_links_page(path: Path, found: list[Links]) -> None:
    """Write the page of links."""
    from ..view.page.links_page import links_page  # noqa: PLC0415  # only a page needs these modules
    from ..view.page.render import render  # noqa: PLC0415
    from ..view.page.write import write_page  # noqa: PLC0415

    write_page(render("links.html", page=links_page(found)), path)


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


bench = Collection("bench", links)
