"""`muster top`: hosts and ranks live, in a terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ...cli.job_lookup import JobSearch, look, require_logs
from ...cli.shared import EXCLUDE, HOSTS_ALSO, INCLUDE, JOB_HOSTS, RUNS_FOLDER, RunningJobOptions, write_json
from ...core.connect.cluster import Cluster
from ...core.connect.opener import access_beside
from ...core.errors import UsageError
from ...core.hosts import hostfile
from ...core.hosts.host_sample import HostSample, RankSample, TrainingSample
from ...core.job.find import LocatedJob
from ...core.job.reconnect import reconnecting
from ...core.plan.flags import flag
from ...core.text.progress import Progress
from .head import Moment
from .notes import Judge, Note
from .sources import HostSource, JobSource, RecordSource
from .top_history import HostTrack, RankTrack, TopHistory
from .top_screen import everything


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


FIRST_SECONDS, PAUSE_SECONDS = 8.0, 0.5  # how long --once waits for a first sample of each host


@dataclass(frozen=True)
class Top(RunningJobOptions):
    """Show live what every host and rank does: of a job, or of hosts (--hosts).

    Tab changes between hosts and ranks, Enter shows one in full, / filters, q ends.
    """

    hosts: str = flag("", f"watch these hosts, without a job; with JOB: {JOB_HOSTS}", "FILE", also=HOSTS_ALSO)
    include: str = flag("", INCLUDE, "HOSTS")
    exclude: str = flag("", EXCLUDE, "HOSTS")
    once: bool = flag(False, "print hosts and ranks once, as plain text")
    json: bool = flag(False, "print the figures of hosts and ranks once, as JSON for programs")

    def run(self) -> None:
        """Show it until the user ends it, or once."""
        shows_hosts = bool(self.hosts and not self.job)
        if (self.include or self.exclude) and not shows_hosts:
            option = "--include" if self.include else "--exclude"
            raise UsageError(f"{option} is for hosts without a job: muster top --hosts FILE {option} ...")
        if shows_hosts and self.runs != RUNS_FOLDER:
            raise UsageError(f"--runs {self.runs} is for jobs; --hosts without a job shows hosts")
        with contextlib.ExitStack() as stack:
            if shows_hosts:
                source, history = stack.enter_context(_hosts(self))
            else:
                located, search = stack.enter_context(_job(self))
                source, history = JobSource(reconnecting(located)), TopHistory()
                jobs = [job.state for job in search.jobs]
                history.others = tuple(
                    job.job for job in jobs if job.state == "running" and job.job != located.state.job
                )
            if self.once or self.json:
                _fill(source, history)
                moment = Moment(time.monotonic(), time.time())
                if self.json:
                    write_json(as_json(history, moment.now))
                else:
                    sys.stdout.write(everything(history, moment))
                return
            _live(source, history)


def _live(source: RecordSource, history: TopHistory) -> None:
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


@contextlib.contextmanager
def _hosts(options: Top) -> Iterator[tuple[RecordSource, TopHistory]]:
    path = Path(options.hosts)
    chosen = hostfile.select(hostfile.load(path), options.include, options.exclude)
    open_pipe = access_beside(path, options.python).open
    with contextlib.closing(Cluster(chosen, open_pipe, facts=False)) as cluster:
        errors = cluster.connect()
        yield HostSource(cluster, errors), TopHistory(host.name for host in chosen)


def _fill(source: RecordSource, history: TopHistory) -> None:
    """Read the samples so far, and wait a few seconds for hosts that have no rates yet."""
    look, until = source.begin, time.monotonic() + FIRST_SECONDS
    while True:
        for record in look():
            history.take(record, time.monotonic())
        look = source.look
        over = history.job is not None and not history.job.running
        waiting = [
            track for track in history.hosts.values() if not track.why and not (track.last and track.last.cpu)
        ]
        if over or not waiting or time.monotonic() > until:
            return
        time.sleep(PAUSE_SECONDS)
