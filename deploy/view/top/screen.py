"""The screen of `muster top` as a pure function of what is known, and of what the user wants to see."""

from __future__ import annotations

from collections.abc import Sequence

from ...connect.requests.jobs import JobState
from ...console.terminal import harmless
from ...console.text import count, duration
from .history import History
from .host_lines import host_in_full, host_table
from .judge import Judge
from .lines import Line, Span, View
from .rank_lines import rank_in_full, rank_table

PATIENCE = 30.0  # seconds until a job has a sample: it connects, sends the code, and starts its ranks
NO_SAMPLES = "no samples: --sample-every 0, an older version, or a damaged file"


def head(history: History, now: float, clock: float) -> list[Line]:
    """The lines above the table. `now`: of the reader's clock; `clock`: seconds since 1970."""
    job, hosts = history.job, len(history.hosts)
    if job is None:
        first = f"{count(hosts, 'host')}, no job"
    else:
        went = max(0.0, (job.ended or clock) - job.started)
        again = f", attempt {job.attempt}" if job.attempt else ""
        what = f"{count(job.ranks, 'rank')} on {count(len(job.hosts), 'host')}"
        first = f"{job.job}  {job.state}{again}  {job.launcher}, {what}, {_clock(went)}"
    style = "bad" if job and job.state in {"failed", "lost"} else "title"
    lines = [Line((Span(harmless(first), style),))]
    if job and job.why:
        lines.append(Line((Span(harmless(job.why), "bad"),)))
    if job and not any(track.last for track in history.hosts.values()) and _should_have(job, clock):
        lines.append(Line((Span(NO_SAMPLES, "dim"),)))
    words = [Span(_training(history)), *_trouble(history, now)]
    return [*lines, Line(tuple(words))] if any(span.text for span in words) else lines


def _should_have(job: JobState, clock: float) -> bool:
    """Whether a job should have samples by now: it is over, or has run for some time."""
    return not job.running or clock - job.started > PATIENCE


def body(history: History, view: View, now: float) -> list[Line]:
    """The table, or what is chosen in full; the first line names the columns."""
    judge = Judge(history, now)
    if view.chosen.startswith("rank ") and (rank := history.ranks.get(int(view.chosen[5:]))):
        return rank_in_full(rank, judge)
    if host := history.hosts.get(view.chosen):
        return host_in_full(history, host, judge)
    return rank_table(history, view, judge) if view.ranks else host_table(history, view, judge)


def everything(history: History, now: float, clock: float) -> str:
    """All of it as plain text, for `--once`."""
    hosts, ranks = body(history, View(), now), body(history, View(ranks=True), now)
    parts = [head(history, now, clock), hosts, ranks if history.ranks else []]
    return "\n\n".join("\n".join(map(str, part)) for part in parts if part) + "\n"


def _training(history: History) -> str:
    """`step 120, 0.21 s a step, loss 0.35`, as rank 0 wrote it to steps.jsonl, or printed it."""
    training, first = history.training, history.ranks.get(0)
    step = training.step if training else first.step if first else None
    loss = training.loss if training else first.loss if first else None
    parts = [
        f"step {step}" if step is not None else "",
        f"{duration(training.step_seconds)} a step" if training and training.step_seconds else "",
        f"loss {loss:.4g}" if loss is not None else "",
    ]
    return ", ".join(part for part in parts if part)


def _trouble(history: History, now: float) -> Sequence[Span]:
    """How many hosts and ranks need somebody."""
    judge = Judge(history, now)
    hosts = sum(bool(note and note.bad) for note in map(judge.host, history.hosts.values()))
    ranks = sum(bool(note and note.bad) for note in map(judge.rank, history.ranks.values()))
    words = [count(number, word) for number, word in ((hosts, "host"), (ranks, "rank")) if number]
    return [Span(f"  in trouble: {', '.join(words)}", "bad")] if words else []


def _clock(went: float) -> str:
    hours, rest = divmod(int(went), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
