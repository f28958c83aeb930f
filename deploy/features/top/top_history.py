"""The state of hosts and ranks, from records in the order of their arrival. Pure."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from dataclasses import dataclass, field
from typing import Annotated, Any

from ...core.connect.requests import JobState
from ...core.decode import MALFORMED, AtMost, from_json
from ...core.hosts.bounds import Rank, Seconds, Text
from ...core.hosts.host_sample import HostSample, RankSample, TrainingSample
from ...core.text.printed import figures_of, seconds_left
from ...core.text.terminal import without_colours
from ...core.text.text import duration

KEPT = 64  # samples of a host or rank: the length of a sparkline
KEPT_LINES, KEPT_PROGRESS, LONGEST_LINE = 200, 500, 500
MOST_SEARCHED = 2000  # lines of one output in which figures are searched
OWN_LINES = 20  # of the log of a rank from before the start that has no line of another rank
PACE_SECONDS = 2.0  # between two looks at the pace of printed steps
MOST_LATE = 64


@dataclass(frozen=True)
class PrintedText:
    """Output of a rank: whole lines. `old`: printed before this program watched."""

    rank: int
    host: str
    text: str
    old: bool = False


@dataclass(frozen=True)
class Stall:
    """A job makes no progress since this time, by its driver's clock, and the cause."""

    since: Seconds
    why: Text


@dataclass(frozen=True)
class Late:
    """A rank for which the others wait, for so many seconds of each step."""

    rank: Rank
    late: Seconds


TopRecord = HostSample | PrintedText | JobState


@dataclass
class HostTrack:
    """A host, and its last samples, oldest first."""

    name: str
    samples: deque[HostSample] = field(default_factory=lambda: deque(maxlen=KEPT))

    @property
    def key(self) -> str:
        """The key of its line on the screen."""
        return self.name

    @property
    def last(self) -> HostSample | None:
        """The newest sample."""
        return self.samples[-1] if self.samples else None


@dataclass
class RankTrack:
    """A rank: its host, its last samples, its last output and when, in seconds of the reader's clock."""

    rank: int
    host: str
    samples: deque[RankSample] = field(default_factory=lambda: deque(maxlen=KEPT))
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    printed: float | None = None
    step: int | None = None
    loss: float | None = None
    done: float | None = None
    """The share of its steps or epochs that is done."""
    progress: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=KEPT_PROGRESS))
    """A time, and the share of its steps or epochs that was done then."""
    running: bool = True
    """Whether the newest sample of its host had it."""

    @property
    def key(self) -> str:
        """The key of its line on the screen."""
        return f"rank {self.rank}"

    @property
    def last_line(self) -> str:
        return self.lines[-1] if self.lines else ""

    @property
    def last(self) -> RankSample | None:
        """The newest sample."""
        return self.samples[-1] if self.samples else None

    def seconds_left(self, now: float) -> float | None:
        """The time to the end, by the pace since this reader began to watch."""
        if not self.progress:
            return None
        (began, before), (last, done) = self.progress[0], self.progress[-1]
        left = seconds_left(done, last - began, before=before)
        return None if left is None else max(0.0, left - (now - last))


class TopHistory:
    """The records of one job."""

    def __init__(self) -> None:
        self.job: JobState | None = None
        self.others: tuple[str, ...] = ()
        """Other jobs that run."""
        self.problem = ""
        """Why the last look for records failed."""
        self.hosts: dict[str, HostTrack] = {}
        self.ranks: dict[int, RankTrack] = {}
        self.training: TrainingSample | None = None
        self.reporter: RankTrack | None = None
        """The first rank that prints steps or losses: rank 0, of most programs."""
        self.rate: float | None = None
        """The newest throughput, by steps.jsonl, else by the lines of the reporter."""
        self.rate_of_samples = False
        """Whether it is in samples in a second, not steps."""
        self.log: dict[str, set[int]] = {}
        """The last lines of all ranks, oldest first, each with the ranks that printed it."""
        self._pace: tuple[float, int] | None = None
        """A time, and the printed step then."""
        self._attempt = 0
        self._newest = 0.0
        self._heard = 0.0

    def take(self, record: TopRecord, heard: float) -> None:
        """Add a record. `heard`: the time of its arrival, in seconds of the reader's own clock."""
        if isinstance(record, HostSample):
            self._sample(record, heard)
        elif isinstance(record, PrintedText):
            self._printed(record, heard)
        else:
            self.job = record
            if record.attempt > self._attempt:
                self._begin_again(record.attempt)
            for name in record.hosts:
                self.hosts.setdefault(name, HostTrack(name))

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.job is not None and not self.job.running

    def silence(self, host: str, now: float) -> float | None:
        """Seconds since a host's last sample; None if there was none.

        Hosts are compared with each other: the clock of the driver may differ from the reader's.
        """
        track = self.hosts.get(host)
        if track is None or track.last is None:
            return None
        return max(0.0, self._newest - track.last.at) + max(0.0, now - self._heard)

    def stall(self, now: float) -> str:
        """`no step for 1 min 36 s: rank 3 on node2 has not come to ...`, from the driver; empty for none."""
        stall = self._recorded(Stall, "stall")
        if stall is None:
            return ""
        # The last sample gives the driver's clock, which may differ from the reader's.
        at = self._newest + max(0.0, now - self._heard) if self._newest else stall.since
        return f"no step for {duration(max(0.0, at - stall.since))}: {stall.why}"

    def late(self) -> dict[int, float]:
        """The ranks for which the others wait, by the driver: for how many seconds of each step."""
        ranks = self._recorded(Annotated[tuple[Late, ...], AtMost(MOST_LATE)], "late") or ()
        return {each.rank: each.late for each in ranks}

    def _recorded(self, kind: Any, name: str) -> Any:
        """What the driver has recorded under this name; None for nothing, and for a malformed text."""
        with contextlib.suppress(*MALFORMED):
            return from_json(kind, json.loads(self.job.recorded[name] if self.job else ""))
        return None

    def _sample(self, sample: HostSample, heard: float) -> None:
        if sample.attempt > self._attempt:
            self._begin_again(sample.attempt)
        if sample.attempt < self._attempt:
            return
        track = self.hosts.setdefault(sample.host, HostTrack(sample.host))
        track.samples.append(sample)
        if sample.at >= self._newest:
            self._newest, self._heard = sample.at, heard
        if sample.training:
            self._train(sample.training)
        present = {entry.rank for entry in sample.ranks}
        for entry in sample.ranks:
            rank = self.ranks.setdefault(entry.rank, RankTrack(entry.rank, sample.host))
            rank.samples.append(entry)
        for rank in self.ranks.values():
            if rank.host == sample.host:
                rank.running = rank.rank in present

    def _train(self, training: TrainingSample) -> None:
        """Take the figures of steps.jsonl, which has more of them than the printed lines."""
        if self.training is None:
            self.rate = None
        self.training = training
        seconds, samples = training.step_seconds, training.samples_per_second
        self.rate_of_samples = samples is not None
        self.rate = samples if samples is not None else 1.0 / seconds if seconds else self.rate

    def _begin_again(self, attempt: int) -> None:
        """Forget the ranks of an earlier attempt, and the hosts that are no longer used."""
        self._attempt, self.ranks, self.training = attempt, {}, None
        self.rate, self.reporter, self._pace = None, None, None
        self.log.clear()
        used = self.job.hosts if self.job else ()
        self.hosts = {name: track for name, track in self.hosts.items() if not used or name in used}

    def _printed(self, printed: PrintedText, heard: float) -> None:
        rank = self.ranks.setdefault(printed.rank, RankTrack(printed.rank, printed.host))
        text = without_colours(printed.text).replace("\r", "\n")
        lines = [line.strip()[:LONGEST_LINE] for line in text.split("\n")]
        if not (printed_lines := [line for line in lines if line]):
            return
        rank.lines.extend(printed_lines)
        rank.printed = None if printed.old else heard
        self._log(rank.rank, printed_lines[-KEPT_LINES:], old=printed.old)
        for line in printed_lines[-MOST_SEARCHED:]:
            self._figures(rank, line, heard)

    def _log(self, rank: int, lines: list[str], *, old: bool) -> None:
        """Add lines to the log. One that other ranks have printed stays where it is.

        Of the lines from before the start, only those count that follow a line of another rank.
        """
        if old and self.log:
            shared = next((index for index, line in enumerate(lines) if line in self.log), -OWN_LINES)
            lines = lines[shared:]
        for line in lines:
            ranks = self.log.get(line, set())
            if rank in ranks:  # it prints the line again
                del self.log[line]
            self.log[line] = {rank} if rank in ranks else ranks | {rank}
        for line in [*self.log][: max(0, len(self.log) - KEPT_LINES)]:
            del self.log[line]

    def _figures(self, rank: RankTrack, line: str, heard: float) -> None:
        figures = figures_of(line)
        rank.step = rank.step if figures.step is None else figures.step
        rank.loss = rank.loss if figures.loss is None else figures.loss
        if figures.done is not None:
            rank.done = figures.done
            if rank.printed is not None:
                rank.progress.append((heard, figures.done))
        if figures.step is None and figures.loss is None:
            return
        if self.reporter is None or rank.rank < self.reporter.rank:
            self.reporter, self._pace = rank, None
            self.rate = self.rate if self.training else None
        if self.training is None and rank is self.reporter:
            self._printed_rate(rank, heard)

    def _printed_rate(self, rank: RankTrack, heard: float) -> None:
        """Measure the pace of the printed steps."""
        if rank.printed is None or rank.step is None:
            return
        since, before = self._pace or (heard, rank.step)
        if heard - since >= PACE_SECONDS or rank.step < before:
            if rank.step > before:
                self.rate = (rank.step - before) / (heard - since)
            since, before = heard, rank.step
        self._pace = since, before
