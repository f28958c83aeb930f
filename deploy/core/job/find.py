"""Finds jobs on this machine or on hosts by their id, reads and follows their output, and ends them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ..connect.fanout import on_every
from ..connect.requests import END_DRIVER, FILES, JOBS, OUTPUT, READ, Answer, JobState, Request
from ..errors import MusterError, UsageError
from ..hosts.hostfile import Host
from ..text.text import nearest
from ..wire.job_folders import JobFolders
from ..wire.rank_logs import RankLog

POLL_SECONDS = 0.3
STOP_SECONDS = 20.0
"""For the driver to end its job, beyond the grace of the ranks."""
LISTED, NEWEST = 10, 3


class JobRecords(Protocol):
    """Answers requests about the jobs of a host at the end of a channel, or of this machine."""

    @property
    def host(self) -> str: ...
    def ask(
        self, request: Request[Answer], payload: bytes = b"", *, seconds: float = 30.0, **fields: Any
    ) -> Answer: ...


class LocalRuns:
    """The runs of this machine."""

    host = ""

    def __init__(self, runs: Path) -> None:
        jobs = JobFolders(runs, inside=".")
        self._answers: Mapping[Request[Any], Callable[[dict[str, Any], bytes], dict[str, Any]]] = {
            JOBS: jobs.do_jobs,
            OUTPUT: jobs.do_output,
            END_DRIVER: jobs.do_end_driver,
            FILES: jobs.do_files,
            READ: jobs.do_read,
        }

    def ask(
        self, request: Request[Answer], payload: bytes = b"", *, seconds: float = 30.0, **fields: Any
    ) -> Answer:
        try:
            answer = self._answers[request](fields, payload)
            return request.read(answer, answer.get("payload", b""))
        except OSError as error:
            raise MusterError(f"{error.filename}: {error.strerror}") from None
        except ValueError as error:
            raise MusterError(f"here: {error}") from None


class LocatedJob(NamedTuple):
    """A job, and the source of its records."""

    state: JobState
    records: JobRecords


class LogLine(NamedTuple):
    """Printed text: whole lines of a rank, or a line of the launcher or the driver, which has no rank."""

    rank: int | None
    host: str
    stream: str
    text: str


class FoundJobs(NamedTuple):
    """Each job once, oldest first, and what was wrong with the answers of hosts."""

    jobs: list[LocatedJob]
    disputes: Mapping[str, str]
    """By the id of the job: several hosts say that they are its head, and none of them can be believed."""
    disregarded: Mapping[str, Sequence[str]]
    """The jobs of which a host has a record, and their heads have none; by the host."""


def jobs_at(sources: Sequence[JobRecords], errors: dict[str, MusterError] | None = None) -> list[LocatedJob]:
    """Every job of these sources, oldest first; a job that several have is in the list several times.

    `errors` gets that of each source that does not answer; without it, such errors are raised.
    """
    by_host = {source.host: source for source in sources}
    outcomes = on_every(by_host, lambda host: by_host[host].ask(JOBS, job=""))
    if errors is None:
        outcomes.require_all()
    else:
        errors.update(outcomes.errors)
    located = [
        LocatedJob(state, by_host[host]) for host, answer in outcomes.results.items() for state in answer.jobs
    ]
    return sorted(located, key=_age)


def counted(
    located: Iterable[LocatedJob], asked: Container[str], recorded_head: Callable[[str], str]
) -> FoundJobs:
    """The record of each job that counts. A host can write anything about the jobs of others.

    This is the record of this machine, or else that of the job's head, which `recorded_head` gives for a job
    that was launched from here. Of another job, the head is the host that its record names, if this is the
    host that has the record, or if none of its name was `asked`.
    """
    by_job: dict[str, dict[str, LocatedJob]] = {}
    for entry in located:
        by_job.setdefault(entry.state.job, {}).setdefault(entry.records.host, entry)
    found, disputes, disregarded = list[LocatedJob](), dict[str, str](), dict[str, list[str]]()
    for job, by_host in by_job.items():
        counting = _counting(by_host, asked, "" if "" in by_host else recorded_head(job))
        if not counting:
            for host in by_host:
                disregarded.setdefault(host, []).append(job)
            continue
        chosen, *others = counting
        if _rivals(chosen, others):
            with contextlib.suppress(MusterError):  # the others were perhaps asked after it had ended
                chosen = chosen._replace(state=state_of(chosen))
        if rivals := _rivals(chosen, others):
            said = ", ".join(map(_said, [chosen, *rivals[:LISTED]]))
            disputes[job] = (
                f"{job}: its records contradict each other: {said}; each says that it is the head. Name a "
                "hosts file without the wrong one: --hosts FILE"
            )
        found.append(chosen)
    return FoundJobs(sorted(found, key=_age), disputes, disregarded)


def _counting(by_host: Mapping[str, LocatedJob], asked: Container[str], head: str) -> list[LocatedJob]:
    """The records of a job that may count. `head`: as its launch from here has recorded it, if at all."""
    if "" in by_host:
        return [by_host[""]]
    if head:
        return [by_host[head]] if head in by_host else []
    heads = [entry for host, entry in by_host.items() if entry.state.head_name == host]
    # localhost is another machine on each host.
    return heads or [
        entry
        for entry in by_host.values()
        if entry.state.head_name not in asked or Host(entry.state.head_name).is_local
    ]


def _rivals(chosen: LocatedJob, others: Iterable[LocatedJob]) -> list[LocatedJob]:
    """The records with another content. Hosts that share a home have the same."""

    def content(state: JobState) -> tuple[object, ...]:
        return state.attempt, state.driver, state.state, state.exit_status

    return [other for other in others if content(other.state) != content(chosen.state)]


def _said(entry: LocatedJob) -> str:
    state = entry.state
    by = f"attempt {state.attempt}, driver {state.driver.pid} on {state.driver.host}"
    return f"{entry.records.host or 'the record here'} says {state.state} ({by})"


def _age(entry: LocatedJob) -> tuple[float, str]:
    return entry.state.arrived, entry.state.job


def only(jobs: Sequence[LocatedJob], job: str, looked: str) -> LocatedJob:
    """The job with this id, or the only job whose id ends so; else `UsageError` with some jobs."""
    matching = [entry for entry in jobs if entry.state.job == job] or [
        entry for entry in jobs if job and entry.state.job.endswith(job)
    ]
    if len(matching) == 1:
        return matching[0]
    shown = matching[-LISTED:] or [*reversed(jobs[-NEWEST:])]
    listed = ", ".join(f"{entry.state.job} ({entry.state.state})" for entry in shown)
    if matching:
        raise UsageError(f"several jobs end in {job}: {listed}")
    near = nearest(job, [entry.state.job for entry in jobs])
    there = f"the newest: {listed}; muster status lists all" if listed else "there are no jobs"
    raise UsageError(f"no job {job} {looked}{near}; {there}")


def newest(jobs: Sequence[LocatedJob], user: str, looked: str, *, running: bool) -> LocatedJob:
    """The newest job of a user, or the newest that runs: the job of a command without an id.

    A job of another folder's terminal comes last: its output cannot be read from here.
    """
    if matching := [entry for entry in own(jobs, user) if entry.state.running or not running]:
        readable = [entry for entry in matching if entry.state.detached or not entry.records.host]
        return (readable or matching)[-1]
    raise UsageError(f"no job of {user} {'runs' if running else 'is'} {looked}; muster status lists all jobs")


def own(jobs: Iterable[LocatedJob], user: str) -> list[LocatedJob]:
    """The jobs that a user has launched."""
    return [entry for entry in jobs if entry.state.user == user]


def listed(jobs: Sequence[LocatedJob], last: int | None) -> list[LocatedJob]:
    """The jobs that run, the newest first, then the `last` ones that are over; None for all of these."""
    newest_first = [*reversed(jobs)]
    over = [entry for entry in newest_first if not entry.state.running]
    return [entry for entry in newest_first if entry.state.running] + over[:last]


def state_of(located: LocatedJob) -> JobState:
    """The state of the job now."""
    states = located.records.ask(JOBS, job=located.state.job).jobs
    if not states:
        raise MusterError(f"{located.state.job}: its folder {located.state.folder} is gone")
    return states[0]


def printed(located: LocatedJob, *, rank: int | None, follow: bool, skip: bool = False) -> Iterator[LogLine]:
    """The output of the ranks in the order of its arrival. With `follow`, until the job is over."""
    while True:
        # The state comes before the output, so that the last read misses nothing.
        state = state_of(located) if follow else located.state
        answer = located.records.ask(OUTPUT, job=located.state.job, rank=rank, skip=skip)
        skip = False
        yield from (line_of(state, name, text) for name, text in answer.output)
        if not answer.more:
            if not (follow and state.running):
                return
            time.sleep(POLL_SECONDS)


def stop(located: LocatedJob, by: str, grace: float | None = None) -> Iterator[JobState]:
    """End the job on every host, unless it is over; yields its state until then, and last afterwards.

    This asks its driver to end it, which may have to fetch results. A second call kills a driver that does
    not end in time; then agents end the job. `grace`: seconds for its ranks, in place of those of the launch.
    """
    job = located.state.job
    seconds = STOP_SECONDS + (located.state.grace if grace is None else grace)
    for force in (False, True):
        if not state_of(located).running:
            break
        if not (answer := located.records.ask(END_DRIVER, job=job, by=by, grace=grace, force=force)).told:
            driver = located.state.driver
            raise UsageError(
                f"the driver of {job} is process {driver.pid} on {driver.host}, in a terminal, "
                "where no agent can signal it; press Ctrl-C there"
            )
        deadline = time.monotonic() + (seconds if force or answer.again else float("inf"))
        while (state := state_of(located)).running and time.monotonic() < deadline:
            yield state
            time.sleep(POLL_SECONDS)
    yield state_of(located)


def line_of(state: JobState, name: str, text: str) -> LogLine:
    """The text of a log; `MusterError` for the log of a rank on a host that does not have this rank."""
    log = RankLog.of_name(name)
    if log is None:
        return LogLine(None, "", name, text)
    state.require_own(log.rank, log.host, log.attempt)
    return LogLine(log.rank, log.host, log.stream, text)
