"""`muster top`: hosts and ranks live, in a terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from ...cli.job_lookup import JobSearch, look, require_logs
from ...cli.shared import RunningJobOptions, write_json
from ...core.connect.requests import JobState
from ...core.errors import UsageError
from ...core.job.find import LocatedJob
from ...core.job.reconnect import reconnecting
from ...core.plan.flags import flag
from ...core.text.progress import Progress
from .head import Moment
from .notes import Judge, Note
from .sources import JobSource
from .top_history import HostTrack, RankTrack, TopHistory
from .top_screen import everything


def as_json(history: TopHistory, job: JobState, now: float) -> dict[str, object]:
    """Plain values. `now`: by the clock of the records' arrivals."""
    judge, training = Judge(history, now), history.training
    note = judge.job()
    return {
        "job": job.job,
        "state": job.state,
        "attempt": job.attempt,
        "note": note.text if note else None,
        "training": asdict(training) if training else None,
        "hosts": [_host(history, track, judge, now) for track in history.hosts.values()],
        "ranks": [_rank(track, judge) for _, track in sorted(history.ranks.items())],
    }


def _host(history: TopHistory, track: HostTrack, judge: Judge, now: float) -> dict[str, object]:
    silent = history.silence(track.name, now)
    return {
        "name": track.name,
        "silent": round(silent, 1) if silent is not None else None,
        **_noted(track, judge.host(track)),
    }


def _rank(track: RankTrack, judge: Judge) -> dict[str, object]:
    return {
        "rank": track.rank,
        "host": track.host,
        "running": track.running,
        "step": track.step,
        "loss": track.loss,
        "last_line": track.last_line or None,
        **_noted(track, judge.rank(track)),
    }


def _noted(track: HostTrack | RankTrack, note: Note | None) -> dict[str, object]:
    return {
        "note": note.text if note else None,
        "bad": note.bad if note else False,
        "sample": asdict(track.last) if track.last else None,
    }


FIRST_SECONDS, PAUSE_SECONDS = 8.0, 0.5  # how long --once waits for a first sample of each host


@dataclass(frozen=True)
class Top(RunningJobOptions):
    """Show live what every host and rank of a job does.

    Tab changes between hosts and ranks, Enter shows one in full, q ends.
    """

    once: bool = flag(False, "print hosts and ranks once, as plain text")
    json: bool = flag(False, "print the figures of hosts and ranks once, as JSON for programs")

    def run(self) -> None:
        """Show it until the user ends it, or once."""
        with _job(self) as (located, search):
            source, history = JobSource(reconnecting(located)), TopHistory()
            jobs = [job.state for job in search.jobs]
            history.others = tuple(
                job.job for job in jobs if job.state == "running" and job.job != located.state.job
            )
            if self.once or self.json:
                _fill(source, history)
                moment = Moment(time.monotonic(), time.time())
                if self.json:
                    write_json(as_json(history, history.job or located.state, moment.now))
                else:
                    sys.stdout.write(everything(history, moment))
                return
            _live(source, history)


def _live(source: JobSource, history: TopHistory) -> None:
    """Draw until the user ends it."""
    if not (sys.stdout.isatty() and sys.stderr.isatty() and sys.stdin.isatty()):
        raise UsageError("top needs a terminal; top --once prints the figures, top --json for programs")
    from .app import TopApp

    Progress.close_all()
    # Without this, Textual reads from a closed terminal in a busy loop.
    signal.signal(signal.SIGHUP, lambda *_: os._exit(128 + signal.SIGHUP))
    TopApp(source, history).run()


@contextlib.contextmanager
def _job(options: Top) -> Iterator[tuple[LocatedJob, JobSearch]]:
    """The job with this id, or the newest of this user that runs."""
    with look(options.job, options) as search:
        chosen = search.named(options.job) if options.job else search.default("newest running")
        require_logs(chosen)
        yield chosen, search


def _fill(source: JobSource, history: TopHistory) -> None:
    """Read the samples so far, and wait a few seconds for hosts that have no rates yet."""
    look, until = source.begin, time.monotonic() + FIRST_SECONDS
    while True:
        for record in look():
            history.take(record, time.monotonic())
        look = source.look
        over = history.job is not None and not history.job.running
        waiting = [track for track in history.hosts.values() if not (track.last and track.last.cpu)]
        if over or not waiting or time.monotonic() > until:
            return
        time.sleep(PAUSE_SECONDS)
