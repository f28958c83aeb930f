"""`muster top`: hosts and ranks live, in a terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from json import dumps
from pathlib import Path

from ..connect.cluster import Cluster
from ..connect.opener import opener
from ..errors import UsageError
from ..hosts import hostfile
from ..jobs.control import Known, state_of
from ..jobs.reconnect import reconnecting
from ..launch.stacks import gather
from ..view.top.figures import as_json
from ..view.top.history import History
from ..view.top.screen import everything
from ..view.top.sources import HostSource, JobSource, Source
from .command import command
from .job_lookup import Found, look, require_logs
from .running import job_hosts
from .shared import HELP, JOB_HOSTS, RUNNING_JOB, RUNS, RUNS_FOLDER, explained

FIRST_SECONDS, PAUSE_SECONDS = 8.0, 0.5  # how long --once waits for a first sample of each host

_HELP = {
    **HELP,
    "hosts": f"watch these hosts, without a job; with JOB: {JOB_HOSTS}",
    "job": RUNNING_JOB,
    "runs": RUNS,
    "once": "print hosts and ranks once, as plain text",
    "json": "print once what is known of hosts and ranks, as JSON for programs",
}


@command(help=_HELP, words=("job",))
def top(  # noqa: PLR0917  # a flag for each parameter
    job: str = "",
    hosts: str = "",
    include: str = "",
    exclude: str = "",
    once: bool = False,
    json: bool = False,
    runs: str = RUNS_FOLDER,
    python: str = "",
) -> None:
    """Show live what every host and rank does: of a job, or of hosts without a job (--hosts).

    Tab changes between hosts and ranks, Enter shows one in full, s the stacks, / filters, o sorts, q ends.
    """
    with explained(), contextlib.ExitStack() as opened:
        if (include or exclude) and (job or not hosts):
            option = "--include" if include else "--exclude"
            raise UsageError(f"{option} is for hosts without a job: muster top --hosts FILE {option} ...")
        if hosts and not job and runs != RUNS_FOLDER:
            raise UsageError(f"--runs {runs} is for jobs; --hosts without a job shows hosts")
        if hosts and not job:
            source, history = opened.enter_context(_hosts(hosts, include, exclude, python))
            read_stacks = None
        else:
            known, found = opened.enter_context(_job(job, hosts, runs, python))
            source, history = JobSource(reconnecting(known)), History()
            read_stacks = partial(_stacks, known, found, hosts, runs, python)
        if once or json:
            _fill(source, history)
            now, clock = time.monotonic(), time.time()
            told = dumps(as_json(history, now), indent=2) + "\n" if json else everything(history, now, clock)
            sys.stdout.write(told)
            return
        _live(source, history, read_stacks)


def _live(source: Source, history: History, read_stacks: Callable[[], str] | None) -> None:
    """Draw until the user ends it. Only now textual is loaded: it takes a third of a second."""
    if not (sys.stdout.isatty() and sys.stderr.isatty() and sys.stdin.isatty()):
        raise UsageError("top needs a terminal; top --once prints what it knows, top --json for programs")
    from ..view.top.app import Top  # noqa: PLC0415

    # Textual would read a terminal that is gone forever, with a whole processor.
    signal.signal(signal.SIGHUP, lambda *_: os._exit(128 + signal.SIGHUP))
    Top(source, history, read_stacks).run()


def _stacks(known: Known, found: Found, hosts: str, runs: str, python: str) -> str:
    """The stacks of a job's ranks, over connections of their own."""
    with job_hosts(state_of(known), found, hosts, runs, python) as (_, channels, silent):
        gathered = gather(known.state.job, channels)
    return str(replace(gathered, problems={**gathered.problems, **silent}))


@contextlib.contextmanager
def _job(job: str, hosts: str, runs: str, python: str) -> Iterator[tuple[Known, Found]]:
    """The job with this id, or the newest that runs."""
    with look(job, hosts, runs, python) as found:
        running = [entry for entry in found.known if entry.state.running]
        if not job and not running:
            raise UsageError(
                "no job runs here or on the hosts; top JOB shows one that is over, top --hosts FILE the hosts"
            )
        chosen = found.named(job) if job else running[-1]
        require_logs(chosen)
        yield chosen, found


@contextlib.contextmanager
def _hosts(hosts: str, include: str, exclude: str, python: str) -> Iterator[tuple[Source, History]]:
    chosen = hostfile.select(hostfile.load(Path(hosts)), include, exclude)
    with contextlib.closing(Cluster(chosen, opener(Path(hosts), python), facts=False)) as cluster:
        errors = cluster.connect()
        yield HostSource(cluster, errors), History(host.name for host in chosen)


def _fill(source: Source, history: History) -> None:
    """Take in what there is, and wait a little for hosts that have no rates yet."""
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
