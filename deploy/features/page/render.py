"""Makes the page of a run from its records: one file that loads nothing.

Every text is escaped: it may come from a host. The page's policy forbids scripts and external resources.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

from ...core.job.attempt_record import hidden_values
from ...core.text.fold import fold, fold_names
from ...core.text.terminal import harmless_lines, without_colours
from ...core.text.text import clip, count, duration, number, still_saving
from ...core.wire.clock import now
from ...core.wire.durable import write_atomically
from .chart import Chart, Resources, curves, resources
from .course import Attempt, RankCourse, course, how
from .run_records import PRINTED, Records, RunRecord, Tail, list_of, number_of, read, records_of
from .timeline import Timeline, timeline

TONES = {"done": "good", "failed": "bad", "stopped": "plain", "running": "active", "lost": "bad"}
FOLDER = Path(__file__).parent
LONGEST_PLAN = 40_000
LOG_CHARACTERS = 220_000  # of the last lines of all ranks together
LONGEST_LINE = 240
MOST_SLOW = 128
NONE = "-"


@dataclass(frozen=True)
class Curves:
    """The charts of the metrics, each once."""

    sources: tuple[str, ...]
    """For each axis its files: `steps.jsonl and metrics.jsonl, over step`."""
    charts: tuple[Chart, ...]
    more: int


@dataclass(frozen=True)
class LogExcerpt:
    """The last lines of a rank, by the name of their stream."""

    rank: int
    host: str
    outcome: str
    failed: bool
    streams: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class RunPage:
    """The content of the page of a run."""

    job: str
    state: str
    tone: str
    headline: str
    tail: tuple[str, ...]
    why: tuple[str, ...]
    """Why a recorded job stalled: two lines, and the evidence of each rank."""
    facts: tuple[tuple[str, str], ...]
    timeline: Timeline | None
    attempts: tuple[Attempt, ...]
    ranks: tuple[tuple[str, RankCourse, str, str, str], ...]
    """For the table behind the time line: attempt, rank, start, run time, end."""
    curves: Curves | None
    slow: tuple[str, ...]
    """The late ranks, and the likely cause."""
    resources: Resources | None
    environment: tuple[tuple[str, str], ...]
    versions: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    options: tuple[tuple[str, str], ...]
    plan: str
    outputs: tuple[LogExcerpt, ...]
    notes: tuple[str, ...]
    made: str


def run_page(records: Records, at: float | None = None) -> RunPage:
    """The page. `at`: the time for which it is made, which matters for a running job."""
    made = now() if at is None else at
    attempts = course(records, made)
    launch = records.launches[-1] if records.launches else {}
    state = str(records.state.get("state") or records.result.get("state") or "unknown")
    last = attempts[-1].ranks if attempts else {}
    return RunPage(
        job=str(records.state.get("job") or records.name),
        state=state,
        tone=TONES.get(state, "plain"),
        headline=_headline(records, state),
        tail=_tail(records.result),
        why=_why(records.result),
        facts=tuple(_facts(records, launch, attempts, made)),
        timeline=timeline(attempts),
        attempts=tuple(attempts),
        ranks=tuple(_rank_rows(attempts)),
        curves=_curves(records),
        slow=tuple(_slow(records)),
        resources=resources(records.samples, [*map(str, list_of(records.state.get("hosts")))]),
        environment=tuple((name, str(value)) for name, value in _pairs(launch.get("env"))),
        versions=tuple(_versions(launch)),
        options=tuple((name, _plain(value)) for name, value in _pairs(launch.get("options")) if value != ""),
        plan=_plan(records.plan),
        outputs=tuple(_outputs(records.tails, last, _tail(records.result))),
        notes=(*records.notes, *_of_verdict(records, "note: ")),
        made=_date(made),
    )


def _headline(records: Records, state: str) -> str:
    first = records.result.get("first_failure")
    if state in {"failed", "lost"}:
        reason = first.get("reason") if isinstance(first, dict) else "failed, without a recorded reason"
        return str(records.state.get("why") or reason)
    if state == "stopped":
        return f"stopped by {records.state.get('why') or 'somebody'}"
    if state == "done":
        return str(records.state.get("last_line") or "every rank ended with status 0")
    if saving := [rank for rank in list_of(records.state.get("saving")) if isinstance(rank, int)]:
        return still_saving(saving)
    return {"running": "running: the records up to now"}.get(state, "the end is not recorded")


def _tail(result: RunRecord) -> tuple[str, ...]:
    first = result.get("first_failure")
    lines = list_of(first.get("tail")) if isinstance(first, dict) else []
    return tuple(_cut(str(line)) for line in lines[-30:])


def _why(result: RunRecord) -> tuple[str, ...]:
    why = result.get("why")
    if not isinstance(why, dict):
        return ()
    lines = [why.get("headline", ""), why.get("cause", ""), *list_of(why.get("evidence"))[:30]]
    return tuple(map(_cut, map(str, lines)))


def _facts(
    records: Records, launch: RunRecord, attempts: Sequence[Attempt], made: float
) -> Sequence[tuple[str, str]]:
    state = records.state
    started, ended = (number_of(state.get(name)) for name in ("started", "ended"))
    ranks, hosts = state.get("ranks"), list_of(state.get("hosts"))
    program = " ".join(map(str, [launch.get("program", ""), *list_of(launch.get("args"))])).strip()
    names = fold_names(map(str, hosts))
    took = (
        duration((ended or made) - started) if started else "",
        count(len(attempts), "attempt") if len(attempts) > 1 else "",
        f"exit status {state['exit_status']}" if state.get("exit_status") is not None else "",
    )
    facts = [
        ("command", hidden_values(str(launch.get("command") or ""))),
        ("program", "" if launch.get("command") else hidden_values(program)),
        ("ranks", f"{ranks} on {count(len(hosts), 'host')}: {names}" if isinstance(ranks, int) else ""),
        ("launcher", str(state.get("launcher") or "")),
        ("started", _date(started) if started is not None else ""),
        ("took" if ended is not None else "so far", ", ".join(filter(None, took))),
        ("commit", _commit_of(launch)),
        ("folder", str(state.get("folder") or "")),
    ]
    return [(name, text) for name, text in facts if text]


def _rank_rows(attempts: Sequence[Attempt]) -> Sequence[tuple[str, RankCourse, str, str, str]]:
    rows = []
    for attempt in attempts:
        name = "first" if attempt.number == 0 else f"restart {attempt.number}"
        for row in attempt.ranks.values():
            end = row.ended if row.ended is not None else attempt.ended
            start = f"{row.started - attempt.began:.2f} s" if row.started is not None else NONE
            ran = duration(max(0.0, end - row.started)) if row.started is not None else NONE
            rows.append((name, row, start, ran, how(row)))
    return rows[:2000]


def _curves(records: Records) -> Curves | None:
    """The charts of all files. A metric that several files have is drawn once, over the steps if possible."""
    files = {"steps.jsonl": records.steps, "metrics.jsonl": records.metrics, PRINTED: records.printed}
    charts, files_by_axis, more = dict[str, Chart](), dict[str, list[str]](), 0
    for name, lines in files.items():
        drawn, left = curves(lines)
        more += left
        if new := {chart.title: chart for chart in drawn if chart.title not in charts}:
            charts |= new
            files_by_axis.setdefault(drawn[0].x_name, []).append(name)
    sources = tuple(f"{' and '.join(names)}, over {axis}" for axis, names in files_by_axis.items())
    return Curves(sources, tuple(charts.values()), more) if charts else None


def _versions(launch: RunRecord) -> Sequence[tuple[str, tuple[tuple[str, str], ...]]]:
    """The properties of the hosts, equal hosts together."""
    described = [
        (
            str(host.get("name")),
            tuple((name, _plain(value)) for name, value in host.items() if name not in {"name", "ranks"}),
        )
        for host in records_of(launch.get("hosts"))
    ]
    return [(fold_names(names), values) for names, values in fold(described) if values]


def _plan(plan: str) -> str:
    shown = hidden_values(plan)
    if len(shown) <= LONGEST_PLAN:
        return shown
    return f"{shown[:LONGEST_PLAN]}\n… the rest is in plan.txt of the run's folder"


def _outputs(
    tails: Sequence[Tail], last: dict[int, RankCourse], shown: tuple[str, ...]
) -> Sequence[LogExcerpt]:
    """The last lines of every rank, those that failed first; fewer lines of each where there are many.

    `shown`: the last lines of the failed rank, which the head of the page shows; they are not repeated.
    """
    by_rank: dict[int, list[Tail]] = {}
    for tail in sorted(tails, key=lambda tail: (tail.rank, tail.stream == "out")):
        by_rank.setdefault(tail.rank, []).append(tail)
    lines = max(3, min(30, LOG_CHARACTERS // (max(1, len(by_rank)) * 160)))
    each = LOG_CHARACTERS // max(1, len(tails))
    outputs = []
    for rank, of_rank in by_rank.items():
        row = last.get(rank)
        failed = row is not None and row.outcome == "failed"
        limits = (30, each * 4, shown) if failed else (lines, each)
        kept = [(f"std{tail.stream}", _last_lines(tail, *limits)) for tail in of_rank]
        if streams := tuple(stream for stream in kept if stream[1]):
            outputs.append(LogExcerpt(rank, of_rank[0].host, how(row) if row else "", failed, streams))
    return sorted(outputs, key=lambda output: not output.failed)


def _last_lines(tail: Tail, most: int, characters: int, shown: tuple[str, ...] = ()) -> tuple[str, ...]:
    """At most so many lines, and about so many characters, without those that are shown elsewhere."""
    kept = tuple(map(_cut, tail.lines[-most:]))
    if shown and kept[-len(shown) :] == shown:
        kept = kept[: -len(shown)]
    while len(kept) > 1 and sum(map(len, kept)) > characters:
        kept = kept[1:]
    return kept


def _cut(line: str) -> str:
    """A line of a program without its colours, and no longer than the page shows."""
    return clip(without_colours(line).rstrip(), LONGEST_LINE)


def _slow(records: Records) -> Sequence[str]:
    """The lines of the verdict on late ranks; of a running job, those of the last measurement."""
    if records.result or not records.pace:
        return _of_verdict(records, "slow: ")
    return [_cut(str(line)) for line in list_of(records.pace[-1].get("slow"))[:MOST_SLOW]]


def _of_verdict(records: Records, sign: str) -> Sequence[str]:
    """The lines of the verdict that begin so."""
    lines = (line.strip() for line in records.verdict.splitlines())
    return [line.removeprefix(sign) for line in lines if line.startswith(sign)]


def _plain(value: object) -> str:
    """A value of a record as text."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, (str, int)) else json.dumps(value, sort_keys=True)


def _commit_of(launch: RunRecord) -> str:
    """The git commit of a launch, and whether its files were others; empty without a repository."""
    commit = str(launch.get("commit") or "")[:64]
    return f"{commit}, {'clean' if launch.get('clean') is True else 'with changes'}" if commit else ""


def _pairs(value: object) -> Sequence[tuple[str, object]]:
    return sorted(value.items()) if isinstance(value, dict) else []


def _date(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return "invalid time"


def write_report(folder: Path, path: Path) -> Path:
    """Write the page of the run in a folder, for its user alone; returns its path. OSError names the file."""
    html = as_html(run_page(read(folder)))
    write_atomically(path, html.encode(errors="replace"), durable=False)  # it can be written again
    return path


def as_html(page: RunPage) -> str:
    """The page as text."""
    return str(template().render(page=page, style=(FOLDER / "style.css").read_text()))


@cache
def template() -> Any:
    """The page without a run: to load it takes longer than to fill it in."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # HTML forbids control characters.
        finalize=lambda value: harmless_lines(value) if type(value) is str else value,
    )
    made.filters |= {"duration": duration, "number": number}
    return made.get_template("run.html")
