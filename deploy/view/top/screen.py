"""The screen of `muster top`, and what `--json` prints, as pure functions of the records so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ...connect.requests.jobs import JobState
from ...console.terminal import harmless
from ...console.text import count, duration
from ...hosts.samples import HostSample, RankSample, TrainingSample
from .history import HostTrack, RankTrack, TopHistory
from .judge import Judge, Note
from .lines import ScreenLine, Span, View
from .tables import host_in_full, host_table, rank_in_full, rank_table

PATIENCE = 30.0  # seconds until a job has a sample: it connects, sends the code, and starts its ranks
NO_SAMPLES = "no samples: --sample-every 0, an older version, or a damaged file"


def head(history: TopHistory, now: float, clock: float) -> list[ScreenLine]:
    """The lines above the table. `now`: of the reader's clock; `clock`: seconds since 1970."""
    job, hosts = history.job, len(history.hosts)
    if job is None:
        first = f"{count(hosts, 'host')}, no job"
    else:
        seconds = max(0.0, (job.ended or clock) - job.started)
        again = f", attempt {job.attempt}" if job.attempt else ""
        what = f"{count(job.ranks, 'rank')} on {count(len(job.hosts), 'host')}"
        first = f"{job.job}  {job.state}{again}  {job.launcher}, {what}, {_clock(seconds)}"
    style = "bad" if job and job.state in {"failed", "lost"} else "title"
    lines = [ScreenLine((Span(harmless(first), style),))]
    if job and job.why:
        lines.append(ScreenLine((Span(harmless(job.why), "bad"),)))
    if job and not any(track.last for track in history.hosts.values()) and _should_have(job, clock):
        lines.append(ScreenLine((Span(NO_SAMPLES, "dim"),)))
    spans = [Span(_training(history, now)), *_trouble(history, now)]
    return [*lines, ScreenLine(tuple(spans))] if any(span.text for span in spans) else lines


def _should_have(job: JobState, clock: float) -> bool:
    """Whether a job should have samples by now: it has ended, or has run for some time."""
    return not job.running or clock - job.started > PATIENCE


def body(history: TopHistory, view: View, now: float) -> list[ScreenLine]:
    """The table, or the chosen host or rank in full; the first line names the columns."""
    judge = Judge(history, now)
    if view.chosen.startswith("rank ") and (rank := history.ranks.get(int(view.chosen[5:]))):
        return rank_in_full(rank, judge)
    if host := history.hosts.get(view.chosen):
        return host_in_full(history, host, judge)
    return rank_table(history, view, judge) if view.ranks else host_table(history, view, judge)


def everything(history: TopHistory, now: float, clock: float) -> str:
    """All hosts and ranks as plain text, for `--once`."""
    hosts, ranks = body(history, View(), now), body(history, View(ranks=True), now)
    parts = [head(history, now, clock), hosts, ranks if history.ranks else []]
    return "\n\n".join("\n".join(map(str, part)) for part in parts if part) + "\n"


def _training(history: TopHistory, now: float) -> str:
    """`step 120, 0.21 s a step, loss 0.35`, as rank 0 wrote it to steps.jsonl, or printed it."""
    training, first = history.training, history.ranks.get(0)
    step = training.step if training else first.step if first else None
    loss = training.loss if training else first.loss if first else None
    left = first.seconds_left(now) if first and not (history.job and not history.job.running) else None
    parts = [
        f"step {step}" if step is not None else "",
        f"{duration(training.step_seconds)} a step" if training and training.step_seconds else "",
        f"loss {loss:.4g}" if loss is not None else "",
        f"about {duration(left)} left" if left is not None else "",
    ]
    return ", ".join(part for part in parts if part)


def _trouble(history: TopHistory, now: float) -> Sequence[Span]:
    """The number of hosts and ranks with a bad note."""
    judge = Judge(history, now)
    hosts = sum(bool(note and note.bad) for note in map(judge.host, history.hosts.values()))
    ranks = sum(bool(note and note.bad) for note in map(judge.rank, history.ranks.values()))
    counts = [count(number, noun) for number, noun in ((hosts, "host"), (ranks, "rank")) if number]
    return [Span(f"  in trouble: {', '.join(counts)}", "bad")] if counts else []


def _clock(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"


@dataclass(frozen=True)
class HostFigures:
    """A host now."""

    name: str
    silent: float | None
    note: str | None
    bad: bool
    sample: HostSample | None


@dataclass(frozen=True)
class RankFigures:
    """A rank now."""

    rank: int
    host: str
    running: bool
    step: int | None
    loss: float | None
    last_line: str | None
    own_seconds: float | None
    """Of a step, without waits for others; of a recorded job."""
    note: str | None
    bad: bool
    sample: RankSample | None


@dataclass(frozen=True)
class TopFigures:
    """All hosts and ranks, and the training as its steps.jsonl has it."""

    job: str | None
    state: str | None
    attempt: int | None
    training: TrainingSample | None
    hosts: tuple[HostFigures, ...]
    ranks: tuple[RankFigures, ...]


def as_json(history: TopHistory, now: float) -> dict[str, object]:
    """Plain values. `now`: by the clock of the records' arrivals."""
    judge, job = Judge(history, now), history.job
    figures = TopFigures(
        job=job.job if job else None,
        state=job.state if job else None,
        attempt=job.attempt if job else None,
        training=history.training,
        hosts=tuple(_host(history, track, judge.host(track), now) for track in history.hosts.values()),
        ranks=tuple(_rank(track, judge.rank(track)) for _, track in sorted(history.ranks.items())),
    )
    return asdict(figures)


def _host(history: TopHistory, track: HostTrack, note: Note | None, now: float) -> HostFigures:
    silent = history.silence(track.name, now)
    return HostFigures(
        name=track.name,
        silent=round(silent, 1) if silent is not None else None,
        note=note.text if note else None,
        bad=note.bad if note else False,
        sample=track.last,
    )


def _rank(track: RankTrack, note: Note | None) -> RankFigures:
    return RankFigures(
        rank=track.rank,
        host=track.host,
        running=track.running,
        step=track.step,
        loss=track.loss,
        last_line=track.lines[-1] if track.lines else None,
        own_seconds=track.own,
        note=note.text if note else None,
        bad=note.bad if note else False,
        sample=track.last,
    )
