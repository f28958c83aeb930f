"""The newest figures of all hosts and ranks, for `muster top --json`. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ..samples.messages import HostSample, RankSample, TrainingSample
from .history import HostTrack, RankTrack, TopHistory
from .judge import Judge, Note


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
    note: str | None
    """Why the whole job makes no progress."""
    training: TrainingSample | None
    hosts: tuple[HostFigures, ...]
    ranks: tuple[RankFigures, ...]


def as_json(history: TopHistory, now: float) -> dict[str, object]:
    """Plain values. `now`: by the clock of the records' arrivals."""
    judge, job = Judge(history, now), history.job
    note = judge.job()
    figures = TopFigures(
        job=job.job if job else None,
        state=job.state if job else None,
        attempt=job.attempt if job else None,
        note=note.text if note else None,
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
        last_line=track.last_line or None,
        own_seconds=track.own,
        note=note.text if note else None,
        bad=note.bad if note else False,
        sample=track.last,
    )
