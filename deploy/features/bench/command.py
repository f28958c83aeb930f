"""`muster bench links`, `collectives` and `hosts`: how fast a cluster is, and which parts are slow."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from ...cli.command import Exit
from ...cli.inventory import inventory_of, with_source
from ...cli.shared import runs_of, write_json
from ...core.decode import MALFORMED, AtMost, Between
from ...core.errors import MusterError, UnfitError, UsageError
from ...core.hosts.slots import counted_slots
from ...core.plan.flags import flag
from ...core.plan.spec import size
from ...core.text.terminal import harmless_lines
from ...core.wire.durable import write_atomically
from ...core.wire.files import read_regular
from ...core.wire.os_errors import explain
from . import host_speeds as by_host
from . import links_text
from .command_job import (
    HOSTS,
    LINKS,
    SHORT,
    SWEEP,
    BenchmarkRun,
    BenchOptions,
    KeptOptions,
    made,
    one_rank_each,
    require_done,
    run_benchmark,
    spec_of,
)
from .host_speeds import SlowHost, Speeds
from .link_speeds import Links, Slow, outliers, slower, worst_first
from .link_speeds import read as read_links
from .links_page import links_page
from .printed_values import About, Count, Word, values

MOST_BYTES = 1 << 30
Kept = Links | Speeds
Result = TypeVar("Result", Links, Speeds)


def baseline_of(hosts_file: Path, kind: str) -> Path:
    """`.muster/bench/links-gloo.baseline.json` beside the hosts file, for comparisons with later results."""
    return hosts_file.parent / ".muster" / "bench" / f"{kind}.baseline.json"


def compare(
    result: Result, kind: str, hosts_file: Path, baseline: str, *, keep_this: bool
) -> tuple[Result | None, Path]:
    """The baseline to compare a result with, and its file.

    The result becomes the baseline if there is none, or if `keep_this` asks for it. `baseline`: another file.
    """
    path = Path(baseline) if baseline else baseline_of(hosts_file, kind)
    before = read(path, type(result))
    if keep_this or before is None:
        keep(path, result.as_json())
    return before, path


def as_json(
    result: Kept,
    slow: Sequence[Slow | SlowHost],
    worse: Sequence[Slow | SlowHost] | None,
    problems: Mapping[str, str],
) -> dict[str, Any]:
    """A result with slow links or hosts, those slower than in the baseline, and problems, for programs."""
    return {
        **result.as_json(),
        "slow": [asdict(each) for each in slow],
        "slower": None if worse is None else [asdict(each) for each in worse],
        "problems": dict(problems),
    }


def keep(path: Path, result: dict[str, Any]) -> None:
    """Write a result, whole or not at all. OSError names the file."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(path, (json.dumps(result, indent=1) + "\n").encode())


def read(path: Path, kind: type[Result]) -> Result | None:
    """The result in a file; None without the file. `UsageError` for any other content."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path}: too large for a result of muster bench")
        return kind.of_json(json.loads(read_regular(path)))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path}: {explain(error)}") from None
    except MALFORMED as error:
        raise UsageError(f"{path}: not a result of muster bench: {error}; remove the file") from None


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


def sweep_as_json(job: str, host: str, printed: Mapping[int, str]) -> dict[str, Any]:
    """The sweep that rank 0 on `host` printed. MusterError for any other output."""
    text = printed.get(0, "")
    about, first = values(text, "collectives", About, 1)
    rows, second = values(text, "collective", Row, MOST_ROWS)
    refused, third = values(text, "refused", Refusal, len(OPERATIONS))
    if problem := first or second or third or ("" if about else "rank 0 printed no figures"):
        raise MusterError(problem, host=host)
    return {
        "job": job,
        **asdict(about[0]),
        "rows": [asdict(row) for row in rows],
        "refused": {refusal.operation: refusal.message for refusal in refused},
    }


@dataclass(frozen=True)
class BenchLinks(KeptOptions):
    """Measure latency and bandwidth between every two hosts, both ways.

    Slow links are named. It runs as a job with one rank on each host. The first result is kept beside the
    hosts file, in .muster/bench, and later ones are compared with it.
    """

    html: str = flag("", "also write a page with heat maps to this file", "FILE")

    def run(self) -> None:
        """Measure them, and print the slow ones."""
        _require_baseline(self.baseline, Links)
        with inventory_of(with_source(self)) as inventory:
            hosts = one_rank_each(inventory.hosts)
            if len(hosts) < 2:
                source = "--slurm" if inventory.allocation else self.hosts_file
                raise UsageError(f"{source}: a link needs two hosts, got one")
            ran = run_benchmark(
                spec_of(inventory, hosts, LINKS, _short_or_in_turn(self, LINKS), self),
                inventory,
                runs_of(self.runs),
                out=not self.json,
            )
        require_done(ran)
        links, problems = read_links(ran.job, made(), ran.hosts, ran.printed)
        before, path = compare(
            links, f"links-{links.backend}", self.hosts_file, self.baseline, keep_this=self.keep
        )
        slow = worst_first(partial(outliers, links))
        worse = worst_first(partial(slower, links, before)) if before else None
        if self.json:
            write_json(as_json(links, slow, worse, problems))
        else:
            text = links_text.as_text(links, slow, worse, baseline=_named(path, before), problems=problems)
            sys.stdout.write(harmless_lines(text + _kept(path, before)))
        if self.html:
            page = links_page(links, slow).encode(errors="replace")
            write_atomically(Path(self.html), page, durable=False)  # it can be written again
        if problems:
            raise Exit(code=UnfitError.exit_status)


@dataclass(frozen=True)
class BenchHosts(KeptOptions):
    """Measure memory, matrices and disk of every host.

    Slow hosts are named. It runs as a job with one rank on each host. Results are kept and compared as those
    of bench links.
    """

    folder: str = flag("", "a folder of the hosts whose disk is measured (default: the job's)", "FOLDER")

    def run(self) -> None:
        """Measure them, and print the slow ones."""
        _require_baseline(self.baseline, by_host.Speeds)
        with inventory_of(with_source(self)) as inventory:
            args = _short_or_in_turn(self, HOSTS) + ([f"--folder={self.folder}"] if self.folder else [])
            spec = spec_of(inventory, one_rank_each(inventory.hosts), HOSTS, args, self)
            ran = run_benchmark(spec, inventory, runs_of(self.runs), out=not self.json)
        require_done(ran)
        speeds, problems = by_host.read(ran.job, made(), ran.hosts, ran.printed)
        before, path = compare(speeds, "hosts", self.hosts_file, self.baseline, keep_this=self.keep)
        slow, worse = by_host.slow_hosts(speeds), by_host.slower_hosts(speeds, before) if before else None
        if self.json:
            write_json(as_json(speeds, slow, worse, problems))
        else:
            text = by_host.as_text(speeds, slow, worse, baseline=_named(path, before), problems=problems)
            sys.stdout.write(harmless_lines(text + _kept(path, before)))
        if problems:
            raise Exit(code=UnfitError.exit_status)


def _short_or_in_turn(options: KeptOptions, tool: str) -> list[str]:
    """The arguments of a tool for `--in-turn` and `--short`."""
    return [*(["--in-turn"] if options.in_turn else []), *(SHORT[tool] if options.short else ())]


def _require_baseline(name: str, kind: type[Result]) -> None:
    """`UsageError` for a file that is missing or has no such result, before the benchmark runs."""
    if name and read(Path(name), kind) is None:
        raise UsageError(f"--baseline: no file {name}")


def _named(path: Path, before: Kept | None) -> str:
    return f"{path}, of {before.made}" if before else ""


def _kept(path: Path, before: Kept | None) -> str:
    return "" if before else f"\nlater runs are compared with this one: {path}\n"


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
        """Time them; rank 0 prints the table."""
        args = [f"--{name}={value}" for name, value in self._arguments().items()]
        with inventory_of(with_source(self)) as inventory:
            listed, _ = counted_slots(inventory.hosts, {}, self.per_host)
            spec = spec_of(inventory, listed, SWEEP, [*args, *(["--json"] if self.json else [])], self)
            spec = replace(spec, np=self.np)
            ran = run_benchmark(spec, inventory, runs_of(self.runs), table=not self.json)
        if self.json and ran.printed.get(0):
            write_json(_swept(ran))
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


def _swept(ran: BenchmarkRun) -> dict[str, Any]:
    """The output of rank 0 for JSON. If it is incomplete, exit as the failed job did."""
    try:
        return sweep_as_json(ran.job, ran.hosts[0], ran.printed)
    except MusterError:
        require_done(ran)
        raise
