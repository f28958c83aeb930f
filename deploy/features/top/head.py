"""The first lines of the screen: alarms, the job, its progress and the time to its end. Pure."""

from __future__ import annotations

from textwrap import wrap
from typing import NamedTuple

from ...core.text.fold import fold, fold_names
from ...core.text.printed import seconds_left
from ...core.text.terminal import harmless
from ...core.text.text import count, duration, number, span, still_saving
from .notes import Judge, Note
from .screen_lines import ScreenLine, Span, bar, joined, line
from .top_history import RankTrack, TopHistory

ALARMING = {"failed", "lost"}
PATIENCE = 30.0  # seconds until a job has a sample: it connects, sends the code, and starts its ranks
ALARM_LINES = 3  # of one alarm
NO_SAMPLES = "no samples: of an older version, or the file is damaged"
NO_STEPS = "no step yet: print lines such as `step 12/500 loss 0.3`, or write steps.jsonl"


class Moment(NamedTuple):
    """A time of the reader's own clock, and the same time in seconds since 1970."""

    now: float
    clock: float


def alarm_lines(history: TopHistory, judge: Judge, width: int, most: int) -> list[ScreenLine]:
    """Failures of the job, of ranks and of hosts, on which the user must act. Equal ones are one line."""
    job = history.job
    texts = [history.problem] if history.problem else []
    if job and job.state in ALARMING:
        texts.append(f"{job.state}: {job.why}" if job.why else job.state)
    ranks = [(rank.rank, note.text) for rank in history.ranks.values() if (note := _bad(judge.rank(rank)))]
    hosts = [(host.name, note.text) for host in history.hosts.values() if (note := _bad(judge.host(host)))]
    texts += [note.text] if (note := judge.job()) else []
    texts += [f"{span(sorted(numbers))}: {text}" for numbers, text in fold(ranks)]
    texts += [f"{fold_names(names)}: {text}" for names, text in fold(hosts)]
    lines = [
        f"{'  ' if number else '! '}{part}"
        for text in texts
        for number, part in enumerate(
            wrap(harmless(text), width - 2, max_lines=min(ALARM_LINES, most), placeholder="…") or [""]
        )
    ]
    left = f"! {len(lines) - most + 1} more lines of alarms"
    shown = lines if len(lines) <= most else [*lines[: most - 1], left]
    return [line(width, Span(text, "bad")) for text in shown]


def _bad(note: Note | None) -> Note | None:
    return note if note and note.bad else None


def job_lines(history: TopHistory, moment: Moment, width: int) -> list[ScreenLine]:
    """The job, and its progress."""
    job = history.job
    if job is None:
        return []
    seconds = max(0.0, (job.ended or moment.clock) - job.started)
    again = f", attempt {job.attempt}" if job.attempt else ""
    what = f"{count(job.ranks, 'rank')} on {count(len(job.hosts), 'host')}"
    texts = [f"{job.job}  {job.state}{again}", f"  {job.launcher}, {what}, {_clock(seconds)}"]
    lines = [line(width, Span(texts[0], "title"), Span(texts[1]))]
    if history.others:
        other = f"{count(len(history.others), 'other job')} running: muster top {history.others[-1]}"
        lines.append(line(width, Span(other, "dim")))
    if (why := job.why or still_saving(job.saving)) and job.state not in ALARMING:
        lines.append(line(width, Span(why)))
    progress = _progress(history, moment)
    if any(progress):
        done = history.reporter.done if history.reporter else None
        share = [] if done is None else [Span(bar(done, width // 8), "mark"), Span(f" {done:.0%}  ", "title")]
        left = width - sum(len(text) for text, _ in share)
        lines.append(line(width, *share, Span(joined(progress, ", ", left))))
    elif job.state == "waiting":
        lines.append(line(width, Span("in the queue of Slurm", "dim")))
    elif not job.running or moment.clock - job.started > PATIENCE:
        sampled = any(track.last for track in history.hosts.values())
        text = (NO_STEPS if job.running else "") if sampled else NO_SAMPLES
        lines += [line(width, Span(text, "dim"))] if text else []
    return lines


def _progress(history: TopHistory, moment: Moment) -> list[str]:
    """`about 45 s left`, `step 120`, `loss 0.35`, `4.76 steps/s`, `210 ms a step`; the best ones first."""
    training, printed = history.training, history.reporter
    step = training.step if training else printed.step if printed else None
    loss = training.loss if training else printed.loss if printed else None
    left = _time_left(history, printed, moment) if printed else None
    unit = "samples/s" if history.rate_of_samples else "steps/s"
    return [
        f"about {duration(round(left))} left" if left is not None else "",
        f"step {step}" if step is not None else "",
        f"loss {loss:.4g}" if loss is not None else "",
        f"{number(history.rate, 3)} {unit}" if history.rate is not None else "",
        f"{duration(training.step_seconds)} a step" if training and training.step_seconds else "",
    ]


def _time_left(history: TopHistory, printed: RankTrack, moment: Moment) -> float | None:
    """By the pace since this reader began to watch; without one yet, by the pace since the start."""
    job = history.job
    if job is None or not job.running:
        return None
    left = printed.seconds_left(moment.now)
    return (
        seconds_left(printed.done, moment.clock - job.started) if left is None and not job.attempt else left
    )


def _clock(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
