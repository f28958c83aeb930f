"""`muster bench links`, `collectives` and `hosts`: how fast a cluster is, and which parts are slow."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from ...cli.command import Exit
from ...cli.inventory import Inventory, inventory_of, with_source
from ...cli.shared import runs_of, write_json
from ...core.decode import AtMost, Between
from ...core.errors import MusterError, UnfitError, UsageError
from ...core.hosts.slots import counted_slots
from ...core.plan.flags import flag
from ...core.plan.spec import size
from ...core.text.terminal import harmless_lines
from ...core.wire.durable import write_atomically
from . import host_speeds as by_host
from . import links_text
from .command_job import (
    HOSTS,
    LINKS,
    SHORT,
    SWEEP,
    BenchmarkRun,
    BenchOptions,
    HostsBenchOptions,
    made,
    one_rank_each,
    require_done,
    run_benchmark,
    spec_of,
)
from .host_speeds import SlowHost, Speeds
from .link_speeds import Links, Slow, worst_first
from .link_speeds import read as read_links
from .links_text import links_page
from .printed_values import About, Count, Word, values

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv")
TYPES = ("half", "bfloat16", "float", "double")
MOST_ROWS = 10_000
Positive = Annotated[float, Between(0, 1e15)]


@dataclass(frozen=True)
class Row:
    """One size of one operation: bytes, elements, microseconds of a call, GB/s, and wrong elements."""

    operation: Word
    size: Count
    count: Count
    type: Word
    time_us: Positive
    algbw: Positive
    busbw: Positive
    wrong: Count


@dataclass(frozen=True)
class Refusal:
    """An operation that the backend refuses, and its message."""

    operation: Word
    message: Annotated[str, AtMost(400)]


@dataclass(frozen=True)
class Sweep:
    """The output of rank 0: what was measured, the rows, and the operations that the backend refuses."""

    about: About
    rows: Sequence[Row]
    refused: Mapping[str, str]

    def as_json(self, job: str) -> dict[str, Any]:
        """The same for programs."""
        rows = [asdict(row) for row in self.rows]
        return {"job": job, **asdict(self.about), "rows": rows, "refused": dict(self.refused)}

    def as_text(self) -> str:
        """A table for each operation, with the names and units of nccl-tests."""
        about, rows = self.about, self.rows
        lines = [f"# Using {about.backend} on {about.device}, {about.ranks} ranks", "#"]
        for name in dict.fromkeys([*(row.operation for row in rows), *self.refused]):
            if message := self.refused.get(name):
                lines.append(f"# {name}: refused: {message}")
            else:
                lines += [f"# Collective test starting: {name}_perf", "#", *HEADS]
                lines += [_line(row) for row in rows if row.operation == name]
        wrong, bus = sum(row.wrong for row in rows), [row.busbw for row in rows]
        lines.append(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
        lines.append(f"# Avg bus bandwidth    : {sum(bus) / len(bus) if bus else 0.0:g}")
        return "".join(f"{line}\n" for line in lines)


HEADS = (
    "#       size         count      type     time    algbw    busbw  #wrong",
    "#        (B)    (elements)               (us)   (GB/s)   (GB/s)",
)


def _line(row: Row) -> str:
    digits = 0 if row.time_us >= 10000 else 1 if row.time_us >= 100 else 2
    what = f"{row.size:12d}  {row.count:12d}  {row.type:>8}"
    return f"{what}  {row.time_us:>7.{digits}f}  {row.algbw:7.2f}  {row.busbw:7.2f}  {row.wrong:6d}"


def read_sweep(host: str, printed: str) -> Sweep:
    """The sweep that rank 0 on `host` printed. MusterError for any other output."""
    about, first = values(printed, "collectives", About, 1)
    rows, second = values(printed, "collective", Row, MOST_ROWS)
    refused, third = values(printed, "refused", Refusal, len(OPERATIONS))
    if problem := first or second or third or ("" if about else "rank 0 printed no figures"):
        raise MusterError(problem, host=host)
    return Sweep(about[0], rows, {refusal.operation: refusal.message for refusal in refused})


@dataclass(frozen=True)
class BenchLinks(HostsBenchOptions):
    """Measure latency and bandwidth between every two hosts, both ways.

    Slow links are named. It runs as a job with one rank on each host.
    """

    html: str = flag("", "also write a page with heat maps to this file", "FILE")

    def run(self) -> None:
        """Measure them, and print the slow ones."""
        with inventory_of(with_source(self)) as inventory:
            if len(inventory.hosts) < 2:
                source = "--slurm" if inventory.allocation else self.hosts_file
                raise UsageError(f"{source}: a link needs two hosts, got one")
            ran = _measured(self, inventory, LINKS)
        links, problems = read_links(ran.job, made(), ran.hosts, ran.printed)
        slow = worst_first(links)
        if self.html:
            page = links_page(links, slow).encode(errors="replace")
            write_atomically(Path(self.html), page, durable=False)  # it can be written again
        _show(self, links, slow, links_text.as_text(links, slow, problems), problems)


@dataclass(frozen=True)
class BenchHosts(HostsBenchOptions):
    """Measure memory, matrices and disk of every host.

    Slow hosts are named. It runs as a job with one rank on each host.
    """

    folder: str = flag("", "a folder of the hosts whose disk is measured (default: the job's)", "FOLDER")

    def run(self) -> None:
        """Measure them, and print the slow ones."""
        with inventory_of(with_source(self)) as inventory:
            ran = _measured(self, inventory, HOSTS, [f"--folder={self.folder}"] if self.folder else [])
        speeds, problems = by_host.read(ran.job, made(), ran.hosts, ran.printed)
        slow = by_host.slow_hosts(speeds)
        _show(self, speeds, slow, by_host.as_text(speeds, slow, problems), problems)


def _measured(
    options: HostsBenchOptions, inventory: Inventory, tool: str, args: Sequence[str] = ()
) -> BenchmarkRun:
    """Run a tool with one rank on each host; exits as a launch does if it failed."""
    own = [*(["--in-turn"] if options.in_turn else []), *(SHORT[tool] if options.short else ())]
    spec = spec_of(inventory, one_rank_each(inventory.hosts), tool, [*own, *args], options)
    ran = run_benchmark(spec, inventory, runs_of(options.runs), out=not options.json)
    require_done(ran)
    return ran


def _show(
    options: HostsBenchOptions,
    result: Links | Speeds,
    slow: Sequence[Slow | SlowHost],
    text: str,
    problems: Mapping[str, str],
) -> None:
    """Print a result; exits with 3 if a host has no valid figures."""
    if options.json:
        write_json({**asdict(result), "slow": [asdict(each) for each in slow], "problems": dict(problems)})
    else:
        sys.stdout.write(harmless_lines(text))
    if problems:
        raise Exit(code=UnfitError.exit_status)


@dataclass(frozen=True)
class BenchCollectives(BenchOptions):
    """Time collective operations over sizes, and check their results.

    Options have the names of nccl-tests; any backend, CPUs and GPUs. Ends with 1 if a result is wrong.
    """

    operation: tuple[str, ...] = flag(
        (), f"{', '.join(OPERATIONS)} (default: all)", takes="positional", choices=OPERATIONS
    )
    minbytes: str = flag("8", "the first size: 8, 1M, 1G (default: 8)", "BYTES", also=("-b",))
    maxbytes: str = flag("32M", "the last size (default: 32M)", "BYTES", also=("-e",))
    stepfactor: int = flag(2, "from one size to the next (default: 2)", "N", least=2, also=("-f",))
    iters: int = flag(20, "timed calls of each size (default: 20)", "N", least=1, also=("-n",))
    warmup_iters: int = flag(5, "calls before them (default: 5)", "N", least=0, also=("-w",))
    datatype: str = flag("float", f"the type: {', '.join(TYPES)}", "TYPE", also=("-d",), choices=TYPES)
    np: int = flag(0, "number of ranks (default: all slots)", "N", least=1)
    per_host: int = flag(0, "number of ranks on each host (default: its slots)", "N", least=1)

    def run(self) -> None:
        """Time them, and print the table."""
        args = [f"--{name}={value}" for name, value in self._arguments().items()]
        with inventory_of(with_source(self)) as inventory:
            listed, _ = counted_slots(inventory.hosts, {}, self.per_host)
            spec = replace(spec_of(inventory, listed, SWEEP, args, self), np=self.np)
            ran = run_benchmark(spec, inventory, runs_of(self.runs))
        try:
            sweep = read_sweep(ran.hosts[0], ran.printed.get(0, ""))
        except MusterError:
            require_done(ran)
            raise
        if self.json:
            write_json(sweep.as_json(ran.job))
        else:
            sys.stdout.write(harmless_lines(sweep.as_text()))
        require_done(ran)

    def _arguments(self) -> dict[str, object]:
        """The options of the tool. `UsageError` for those that do not go together."""
        least, most = size("--minbytes", self.minbytes, least=1), size("--maxbytes", self.maxbytes, least=1)
        if least > most:
            raise UsageError(f"--minbytes {self.minbytes} is above --maxbytes {self.maxbytes}")
        return {
            "operations": ",".join(self.operation or OPERATIONS),
            "minbytes": least,
            "maxbytes": most,
            "stepfactor": self.stepfactor,
            "iters": self.iters,
            "warmup-iters": self.warmup_iters,
            "datatype": self.datatype,
        }
