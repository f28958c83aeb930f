"""The results of each run: throughput with its spread, last values and curves, as text and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from ...console.fold import fold
from ...console.terminal import harmless
from ...console.text import duration, number, table
from ..page.chart import SERIES, Chart, chart
from ..page.metrics import axis_of, keys_of, points_of
from ..page.records import PRINTED, Records, RunRecord, number_of
from .differences import RunDifference, unrecorded

RATES = ("tokens_per_second", "samples_per_second", "step_seconds")
WARM_UP = 0.1
"""The share of the first steps that a rate leaves out: they fill memory and caches."""
MOST_CHARTS = 24


@dataclass(frozen=True)
class StepRate:
    """A rate of a run over its steps: the median, and the tenth and ninetieth percentile."""

    name: str
    middle: float
    low: float
    high: float
    change: float | None
    """The median divided by that of the first run, less 1; None for the first run."""

    @property
    def text(self) -> str:
        """`1,004 (998 to 1,016)`, and by how much it differs from the first run."""
        spread = f"{number(self.middle)} ({number(self.low)} to {number(self.high)})"
        return spread if self.change is None else f"{spread} {self.change * 100:+.1f} %"


@dataclass(frozen=True)
class RunFigures:
    """The figures of one run."""

    job: str
    colour: int
    state: str
    took: str
    ranks: str
    rates: tuple[StepRate | None, ...]
    last: tuple[str, ...]
    rates_file: str
    last_file: str
    """The files that its rates and its last values are from; empty without any."""


@dataclass(frozen=True)
class Comparison:
    """The results of all runs: the names of the columns of rates and last values, and a row for each run."""

    rates: tuple[str, ...]
    last: tuple[str, ...]
    sources: tuple[str, ...]
    """The file of the rates and that of the last values in a sentence each, by job where jobs differ."""
    rows: tuple[RunFigures, ...]
    charts: tuple[Chart, ...]


def outcome(runs: Sequence[Records]) -> Comparison:
    """The figures and the curves of these runs."""
    every = [[_rate(run, name, None) for run in runs] for name in RATES]
    names = [name for name, rates in zip(RATES, every, strict=True) if any(rates)]
    metrics = [_metrics(run)[1] for run in runs]
    keys = list(dict.fromkeys(key for lines in metrics for key in keys_of(lines)))
    keys = [key for key in keys if key not in RATES and not key.endswith("_seconds")]
    rows = tuple(_figures(run, index, runs[0], names, keys[:8]) for index, run in enumerate(runs))
    sources = {
        "Rates": [(row.job, row.rates_file) for row in rows],
        "Last values": [(row.job, row.last_file) for row in rows],
    }
    return Comparison(
        rates=tuple(names),
        last=tuple(keys[:8]),
        sources=tuple(sentence for what, files in sources.items() if (sentence := _source(what, files))),
        rows=rows,
        charts=tuple(_charts(runs)),
    )


def _figures(
    run: Records, index: int, first: Records, rates: Sequence[str], keys: Sequence[str]
) -> RunFigures:
    started, ended = number_of(run.state.get("started")), number_of(run.state.get("ended"))
    file, lines = _metrics(run)
    of_run = tuple(_rate(run, name, _rate(first, name, None) if index else None) for name in rates)
    return RunFigures(
        job=run.name,
        colour=index % SERIES,
        state=str(run.state.get("state") or "unknown"),
        took=duration(ended - started) if started is not None and ended is not None else "-",
        ranks=str(run.state.get("ranks") or "-"),
        rates=of_run,
        last=tuple(_last(lines, key) for key in keys),
        rates_file=_steps(run)[0] if any(of_run) else "",
        last_file=file if keys else "",
    )


def _source(what: str, files: Sequence[tuple[str, str]]) -> str:
    """`Rates are from steps.jsonl.`, with the jobs of each file if they differ; empty without a file."""
    groups = fold([(job, file) for job, file in files if file])
    if len(groups) == 1:
        return f"{what} are from {groups[0][1]}."
    named = " and ".join(f"{file} ({', '.join(jobs)})" for jobs, file in groups)
    return f"{what} are from {named}." if named else ""


def _rate(run: Records, name: str, first: StepRate | None) -> StepRate | None:
    values = [value for line in _steps(run)[1] if (value := number_of(line.get(name))) is not None]
    values = sorted(values[int(len(values) * WARM_UP) :])
    if not values:
        return None
    middle = median(values)
    change = middle / first.middle - 1 if first and first.middle else None
    last = len(values) - 1
    return StepRate(name, middle, values[round(last * 0.1)], values[round(last * 0.9)], change)


def _steps(run: Records) -> tuple[str, Sequence[RunRecord]]:
    """The file with the rates of a run, and its lines."""
    return ("steps.jsonl", run.steps) if run.steps else ("metrics.jsonl", run.metrics)


def _metrics(run: Records) -> tuple[str, Sequence[RunRecord]]:
    """The file with the last values of a run, and its lines."""
    files = (("metrics.jsonl", run.metrics), ("steps.jsonl", run.steps), (PRINTED, run.printed))
    return next(((file, lines) for file, lines in files if lines), ("", ()))


def _last(lines: Sequence[RunRecord], key: str) -> str:
    values = [value for line in lines if (value := number_of(line.get(key))) is not None]
    return number(values[-1]) if values else "-"


def _charts(runs: Sequence[Records]) -> Sequence[Chart]:
    charts: list[Chart | None] = []
    for file, lines in (
        ("metrics.jsonl", [run.metrics for run in runs]),
        ("steps.jsonl", [run.steps for run in runs]),
        (PRINTED, [run.printed for run in runs]),
    ):
        keys = dict.fromkeys(key for of_run in lines for key in keys_of(of_run))
        for key in keys:
            series = [
                (run.name, points_of(of_run, key, axis_of(of_run)))
                for run, of_run in zip(runs, lines, strict=True)
            ]
            charts.append(
                chart(f"{key}, {file}", axis_of(next(of_run for of_run in lines if of_run)), series)
            )
    return [drawn for drawn in charts if drawn is not None][:MOST_CHARTS]


COMPARED = "code, arguments, environment, launch, versions, hosts and options"


def as_text(runs: Sequence[Records], changes: Sequence[RunDifference], comparison: Comparison) -> str:
    """The differences, then a row of figures for each run."""
    lines = (
        [f"What differs ({COMPARED} are compared):"]
        if changes
        else [f"Nothing differs: {COMPARED} are equal."]
    )
    lines += [f"note: {name} has no record of its launch" for name in unrecorded(runs)]
    rows = [("", "", *(run.name for run in runs))]
    rows += [(difference.section, difference.name, *difference.values) for difference in changes]
    lines += table(rows) if changes else []
    for difference in changes:
        lines += ["", *difference.diff] if difference.diff else []
    header = ("job", "state", "took", "ranks", *comparison.rates, *comparison.last)
    figures = [header] + [
        (
            row.job,
            row.state,
            row.took,
            row.ranks,
            *(rate.text if rate else "-" for rate in row.rates),
            *row.last,
        )
        for row in comparison.rows
    ]
    note = (
        ["Rates: median of the steps (tenth to ninetieth percentile), against the first job."]
        if comparison.rates
        else []
    )
    return "".join(
        f"{harmless(line)}\n" for line in [*lines, "", *table(figures), *note, *comparison.sources]
    )


def as_json(
    runs: Sequence[Records], changes: Sequence[RunDifference], comparison: Comparison
) -> dict[str, Any]:
    """The same for programs."""
    return {
        "jobs": [run.name for run in runs],
        "differences": [asdict(difference) for difference in changes],
        "figures": [
            {
                "job": row.job,
                "state": row.state,
                "rates": {rate.name: asdict(rate) for rate in row.rates if rate},
                "last": dict(zip(comparison.last, row.last, strict=True)),
                "rates_file": row.rates_file,
                "last_file": row.last_file,
            }
            for row in comparison.rows
        ],
    }
