"""`muster bench links`, `collectives` and `hosts`: how fast a cluster is, and what of it is slow."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from json import dumps
from pathlib import Path

from ..bench import collectives as sweep
from ..bench import hosts as by_host
from ..bench import kept, links_text
from ..bench.links import Links, Quantity
from ..bench.links import read as read_links
from ..bench.outliers import Slow, outliers, slower
from ..bench.run import Ran, one_rank_each
from ..console.terminal import harmless_lines
from ..errors import MusterError, UnfitError, UsageError
from ..jobs.job import Job
from ..plan.placement import place
from . import options as request
from .benching import (
    BENCH_HELP,
    HOSTS,
    INTERRUPTED,
    KEPT_HELP,
    LINKS,
    SHORT,
    SWEEP,
    carry_out,
    hosts_for,
    job_on,
    made,
    require_done,
    settings_of,
    with_ranks,
    write_links_page,
)
from .command import Exit, Values, command
from .inventory import HERE
from .shared import explained, require_rank


@command(
    help={**BENCH_HELP, **KEPT_HELP, "html": "also write a page with the heat maps to this file"},
    alone={"--slurm": HERE},
)
def links(  # noqa: PLR0917  # a flag for each parameter
    hosts: str = "hosts.txt",
    slurm: str = "",
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
    with explained(INTERRUPTED), contextlib.ExitStack() as stack:
        _require_baseline(baseline, Links)
        settings = settings_of(launcher, backend, network, python)
        inventory = stack.enter_context(hosts_for(settings, hosts, slurm, include, exclude))
        if len(inventory.hosts) < 2:
            raise UsageError(
                f"{'--slurm' if inventory.allocation else hosts}: a link needs two hosts, here is one"
            )
        args = [*(["--in-turn"] if in_turn else []), *(SHORT[LINKS] if short else ())]
        job = job_on(inventory, one_rank_each(inventory.hosts), LINKS, args, settings)
        ran = carry_out(job, inventory, Path(runs), out=not json)
        require_done(ran)
        found, problems = read_links(job.spec.job, made(), ran.hosts, ran.printed)
        before, path = kept.compare(found, f"links-{found.backend}", Path(hosts), baseline, keep_this=keep)
        slow = _each(partial(outliers, found))
        worse = _each(partial(slower, found, before)) if before else None
        if html:
            write_links_page(Path(html), [found])
        if json:
            sys.stdout.write(dumps(links_text.as_json(found, slow, worse, problems), indent=2) + "\n")
        else:
            text = links_text.as_text(found, slow, worse, baseline=_named(path, before), problems=problems)
            sys.stdout.write(harmless_lines(text + _kept(path, before)))
        if problems:
            raise Exit(code=UnfitError.exit_status)


def _each(judge: Callable[[Quantity], Sequence[Slow]]) -> list[Slow]:
    return [slow for quantity in links_text.QUANTITIES for slow in judge(quantity)]


def _require_baseline(name: str, kind: type[kept.Result]) -> None:
    """`UsageError` for a file that is missing or holds something else, before anything is measured."""
    if name and kept.read(Path(name), kind) is None:
        raise UsageError(f"--baseline: no file {name}")


def _named(path: Path, before: kept.Kept | None) -> str:
    return f"{path}, of {before.made}" if before else ""


def _kept(path: Path, before: kept.Kept | None) -> str:
    return "" if before else f"\nlater runs are compared with this one: {path}\n"


@command(
    iterable=["operation"],
    words=("operation",),
    spellings={
        **{"-b": "--minbytes", "-e": "--maxbytes", "-f": "--stepfactor", "-i": "--stepbytes"},
        **{"-n": "--iters", "-w": "--warmup-iters", "-o": "--op", "-d": "--datatype", "-r": "--root"},
        **{"-c": "--check"},
    },
    help={
        **BENCH_HELP,
        "operation": f"{', '.join(sweep.OPERATIONS)} (default: all)",
        "minbytes": "the first size: 8, 1M, 1G (default: 8)",
        "maxbytes": "the last size (default: 32M)",
        "stepfactor": "from one size to the next (default: 2); 1: add --stepbytes",
        "stepbytes": "added from one size to the next, in place of a factor (default: 1M)",
        "iters": "timed calls of each size (default: 20)",
        "warmup-iters": "calls before them (default: 5)",
        "op": f"the reduction: {', '.join(sweep.REDUCTIONS)}",
        "datatype": f"the type: {', '.join(sweep.TYPES)}",
        "root": "the rank that broadcasts, reduces, gathers and scatters (default: 0)",
        "check": "check the results (default: 1); 0: do not",
        "np": "number of ranks (default: all slots)",
        "per-host": "number of ranks on each host (default: its slots)",
    },
    values={
        **dict.fromkeys(("stepfactor", "iters", "np", "per-host"), Values(1)),
        **dict.fromkeys(("warmup-iters", "root"), Values(0)),
        "check": Values(0, 1),
    },
    alone={"--slurm": HERE},
)
def collectives(  # noqa: PLR0917  # a flag for each parameter
    operation: Iterable[str] | None = None,
    minbytes: str = "8",
    maxbytes: str = "32M",
    stepfactor: int = 0,
    stepbytes: str = "",
    iters: int = 20,
    warmup_iters: int = 5,
    op: str = "sum",
    datatype: str = "float",
    root: int = 0,
    check: int = 1,
    hosts: str = "hosts.txt",
    slurm: str = "",
    include: str = "",
    exclude: str = "",
    np: int = 0,
    per_host: int = 0,
    launcher: str = "mpirun",
    backend: str = "auto",
    network: str = "",
    json: bool = False,
    runs: str = "runs",
    python: str = "",
) -> None:
    """Time the collective operations over sizes and check their results, as nccl-tests do.

    Options and columns are those of nccl-tests; any backend, CPUs and GPUs. Ends with 1 if a result is wrong.
    """
    with explained(INTERRUPTED), contextlib.ExitStack() as stack:
        names = [
            request.one_of("OPERATION", name, sweep.OPERATIONS) for name in operation or sweep.OPERATIONS
        ]
        if root and not {*names} & {*sweep.ROOTED}:
            raise UsageError(f"--root {root} is for {', '.join(sweep.ROOTED)}; leave it out")
        if op != sweep.REDUCTIONS[0] and not {*names} & {*sweep.REDUCING}:
            raise UsageError(f"--op {op} is for {', '.join(sweep.REDUCING)}; leave it out")
        values = {
            "operations": ",".join(names),
            **_sizes(minbytes, maxbytes, stepfactor, stepbytes),
            "iters": iters,
            "warmup-iters": warmup_iters,
            "op": request.one_of("--op", op, sweep.REDUCTIONS),
            "datatype": request.one_of("--datatype", datatype, sweep.TYPES),
            "root": root,
            "check": check,
        }
        args = [*(f"--{name}={value}" for name, value in values.items()), *(["--json"] if json else [])]
        settings = settings_of(launcher, backend, network, python)
        inventory = stack.enter_context(hosts_for(settings, hosts, slurm, include, exclude))
        listed = request.per_host(inventory.hosts, per_host)
        job = with_ranks(job_on(inventory, listed, SWEEP, args, settings), np)
        require_rank(root, sum(place(listed, job.spec).counts.values()), "--root")
        ran = carry_out(job, inventory, Path(runs), table=not json)
        if json and ran.printed.get(0):
            sys.stdout.write(_swept(job, ran))
        require_done(ran)


def _sizes(minbytes: str, maxbytes: str, stepfactor: int, stepbytes: str) -> dict[str, int]:
    """The sizes that are timed, as options of the tool: they grow by a factor or by a step."""
    if stepfactor > 1 and stepbytes:
        raise UsageError(f"--stepbytes needs --stepfactor 1, and it is {stepfactor}; leave one of them out")
    sizes = {
        "minbytes": request.size("--minbytes", minbytes, least=1),
        "maxbytes": request.size("--maxbytes", maxbytes, least=1),
        "stepfactor": stepfactor or (1 if stepbytes else 2),
        "stepbytes": request.size("--stepbytes", stepbytes or "1M", least=1),
    }
    if sizes["minbytes"] > sizes["maxbytes"]:
        raise UsageError(f"--minbytes {minbytes}: is above --maxbytes {maxbytes}")
    return sizes


def _swept(job: Job, ran: Ran) -> str:
    """What rank 0 has printed, as JSON; else the end of the job says why it did not come so far."""
    try:
        return dumps(sweep.as_json(job.spec.job, ran.hosts[0], ran.printed), indent=2) + "\n"
    except MusterError:
        require_done(ran)
        raise


@command(
    help={
        **BENCH_HELP,
        **KEPT_HELP,
        "folder": "a folder of the hosts whose disk is measured (default: the job's)",
    },
    alone={"--slurm": HERE},
)
def hosts(  # noqa: PLR0917  # a flag for each parameter
    hosts: str = "hosts.txt",
    slurm: str = "",
    include: str = "",
    exclude: str = "",
    launcher: str = "mpirun",
    backend: str = "auto",
    network: str = "",
    folder: str = "",
    baseline: str = "",
    keep: bool = False,
    in_turn: bool = False,
    short: bool = False,
    json: bool = False,
    runs: str = "runs",
    python: str = "",
) -> None:
    """Measure memory, matrices, disk, /dev/shm and a loader's work on every host. Slow hosts are named.

    It runs as a job with one rank on each host. Results are kept and compared as those of bench links.
    """
    with explained(INTERRUPTED), contextlib.ExitStack() as stack:
        _require_baseline(baseline, by_host.Speeds)
        settings = settings_of(launcher, backend, network, python)
        inventory = stack.enter_context(hosts_for(settings, hosts, slurm, include, exclude))
        args = [*(["--in-turn"] if in_turn else []), *(SHORT[HOSTS] if short else ())]
        args += [f"--folder={folder}"] if folder else []
        job = job_on(inventory, one_rank_each(inventory.hosts), HOSTS, args, settings)
        ran = carry_out(job, inventory, Path(runs), out=not json)
        require_done(ran)
        found, problems = by_host.read(job.spec.job, made(), ran.hosts, ran.printed)
        before, path = kept.compare(found, "hosts", Path(hosts), baseline, keep_this=keep)
        slow, worse = by_host.slow_hosts(found), by_host.slower_hosts(found, before) if before else None
        if json:
            sys.stdout.write(dumps(by_host.as_json(found, slow, worse, problems), indent=2) + "\n")
        else:
            text = by_host.as_text(found, slow, worse, baseline=_named(path, before), problems=problems)
            sys.stdout.write(harmless_lines(text + _kept(path, before)))
        if problems:
            raise Exit(code=UnfitError.exit_status)
