"""A comparison of runs as text and as plain values. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ...console.terminal import harmless
from ...console.text import table
from ..page.records import Records
from .differences import Difference, unrecorded
from .figures import Outcome

COMPARED = "code, arguments, environment, launch, versions, hosts and options"


def as_text(runs: Sequence[Records], found: Sequence[Difference], came: Outcome) -> str:
    """What differs, then a row of figures for each run."""
    lines = (
        [f"What differs ({COMPARED} are compared):"] if found else [f"Nothing differs: {COMPARED} are equal."]
    )
    lines += [f"note: {name} has no record of what was launched" for name in unrecorded(runs)]
    rows = [("", "", *(run.name for run in runs))]
    rows += [(difference.section, difference.name, *difference.values) for difference in found]
    lines += table(rows) if found else []
    for difference in found:
        lines += ["", *difference.diff] if difference.diff else []
    header = ("job", "state", "took", "ranks", *came.rates, *came.last)
    figures = [header] + [
        (
            row.job,
            row.state,
            row.took,
            row.ranks,
            *(rate.text if rate else "-" for rate in row.rates),
            *row.last,
        )
        for row in came.rows
    ]
    note = (
        ["Rates: median of the steps (tenth to ninetieth percentile), against the first job."]
        if came.rates
        else []
    )
    return "".join(f"{harmless(line)}\n" for line in [*lines, "", *table(figures), *note])


def as_json(runs: Sequence[Records], found: Sequence[Difference], came: Outcome) -> dict[str, Any]:
    """The same for programs."""
    return {
        "jobs": [run.name for run in runs],
        "differences": [asdict(difference) for difference in found],
        "figures": [
            {
                "job": row.job,
                "state": row.state,
                "rates": {rate.name: asdict(rate) for rate in row.rates if rate},
                "last": dict(zip(came.last, row.last, strict=True)),
            }
            for row in came.rows
        ],
    }
