"""Finds a job by its id: its records, its hosts, and how to reach them.

The record of a launch from here (cli/hosts_record.py) lists the hosts of a job. Without it, the
command asks the hosts of `--hosts`, or of hosts.txt, and prints a line about that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from ..core.connect.cluster import Cluster
from ..core.connect.opener import Access, access_beside
from ..core.connect.requests import JOBS, JobState
from ..core.errors import MusterError, UnfitError, UsageError, lines_of
from ..core.hosts import hostfile
from ..core.hosts.hostfile import Host
from ..core.job import find as jobs
from ..core.job.find import JobRecords, LocalRuns, LocatedJob
from ..core.text.fold import fold_names
from ..core.text.terminal import harmless
from ..core.wire.job_folders import is_job_id
from ..core.wire.users import own_name
from ..features.slurm.mark import any_mark
from . import hosts_record
from .hosts_record import HostsRecord
from .shared import RecordOptions, print_note, python_here

LOOKED = "here or on the hosts"
MOST_DOUBTS = 5
SHORT_ID = 4
"""Characters of the end of a job's id that tell it from other jobs."""
Default = Literal["newest", "newest running", "only running"]
"""The job of a command without an id, among those of this user."""


class ConnectedHosts(NamedTuple):
    """A cluster, and how it was reached."""

    access: Access
    cluster: Cluster


class JobSearch(NamedTuple):
    """The jobs on this machine and on the hosts that were asked, and why a host could not be asked."""

    job: str
    """The id of the search, or its end; empty for all jobs."""
    jobs: list[LocatedJob]
    silent: dict[str, str]
    connected: list[ConnectedHosts]
    head: str = ""
    """The host with the driver and the records of the job, if this machine has detached it."""
    disputes: Mapping[str, str] = MappingProxyType({})
    """By the id of the job, the records of it that contradict each other."""
    disregarded: Mapping[str, Sequence[str]] = MappingProxyType({})
    """The jobs of a host that do not count, because their heads have no record of them."""
    runs_here: bool = False
    """Whether the newest job of this user runs here, and no hosts file was named."""

    @property
    def lines(self) -> list[str]:
        """A line for each reason why hosts could not be asked."""
        return self.lines_but(())

    def lines_but(self, hosts: Sequence[str]) -> list[str]:
        """The same, without these hosts, which the command reports."""
        return lines_of((host or "here", why) for host, why in self.silent.items() if host not in hosts)

    @property
    def doubts(self) -> list[str]:
        """Lines about jobs whose records contradict each other, and hosts whose records do not count."""
        texts = [*self.disputes.values()]
        more = [f"and {len(texts) - MOST_DOUBTS} more such jobs"] if len(texts) > MOST_DOUBTS else []
        return [*texts[:MOST_DOUBTS], *more, *(map(self._left_out, self.disregarded))]

    def _left_out(self, host: str) -> str:
        listed = self.disregarded[host]
        names = ", ".join([*listed[:MOST_DOUBTS], *(["..."] if len(listed) > MOST_DOUBTS else [])])
        return f"{host} has records of jobs whose heads have none, so they are left out: {names}"

    def named(self, job: str) -> LocatedJob:
        """The job with this id, or whose id ends so. `UnfitError` if a silent host may have it.

        `MusterError` if it is not clear which record of it counts.
        """
        return self._trusted(self._named(job))

    def _trusted(self, located: LocatedJob) -> LocatedJob:
        if dispute := self.disputes.get(located.state.job):
            raise MusterError(dispute)
        return located

    def _named(self, job: str) -> LocatedJob:
        for host in [
            host for host, ids in self.disregarded.items() if any(each.endswith(job) for each in ids)
        ]:
            print_note(self._left_out(host))
        if self.silent and not any(entry.state.job.endswith(job) for entry in self.jobs):
            raise self._silent_error()
        return jobs.only(self.jobs, job, LOOKED)

    def default(self, which: Default) -> LocatedJob:
        """The job of a command without an id, of this user. `UnfitError` without one, if a host is silent."""
        user = own_name()
        try:
            newest = jobs.newest(self.jobs, user, LOOKED, running=which != "newest")
        except UsageError:
            if self.silent:
                raise self._silent_error() from None
            raise
        running = [entry.state.job for entry in jobs.own(self.jobs, user) if entry.state.running]
        if which == "only running" and len(running) > 1:
            raise UsageError(f"which job? {len(running)} jobs of {user} run: {', '.join(running)}")
        return self._trusted(newest)

    def _silent_error(self) -> UnfitError:
        return UnfitError((host or "here", self._said(host, why)) for host, why in self.silent.items())

    def _said(self, host: str, why: str) -> str:
        """Why a host could not be asked; of the head also what that means for the job."""
        if not host or host != self.head:
            return why
        ended = "if it is down, the job has ended on every host"
        return f"the driver of {self.job} is there, and it does not answer ({why}); {ended}"


@contextlib.contextmanager
def look(job: str, options: RecordOptions, *, newest: bool = False) -> Iterator[JobSearch]:
    """Look for a job, or without an id for all jobs, while the hosts that may have it are connected.

    For a job that this machine has, no host is asked. `newest`: nor if the newest of this user runs here.
    """
    runs = options.runs_folder
    with contextlib.ExitStack() as stack:
        connected, silent, asked = list[ConnectedHosts](), dict[str, MusterError](), set[str]()
        located, head = jobs.jobs_at([_local_records(runs)], silent), ""
        is_local = any(job and entry.state.job.endswith(job) for entry in located)
        here = [entry.state.job for entry in jobs.own(located, own_name()) if entry.state.running]
        runs_here = bool(
            here
            and not (job or options.hosts)
            and hosts_record.newest_elsewhere(runs, after=max(here)) is None
        )
        is_local = is_local or (newest and runs_here)
        for chosen, access, is_head in () if is_local else _routes(job, options):
            head = chosen[0].name if is_head else head
            asked |= {host.name for host in chosen}
            cluster = Cluster(chosen, access.open, facts=False)
            stack.callback(cluster.close)
            errors = cluster.connect()
            located += jobs.jobs_at([*cluster.channels.values()], errors)
            cluster.skip(errors)
            silent |= errors
            connected.append(ConnectedHosts(access, cluster))
        found = jobs.counted(located, asked, partial(hosts_record.head_of, runs))
        reasons = {host: error.reason for host, error in silent.items()}
        yield JobSearch(
            job, found.jobs, reasons, connected, head, found.disputes, found.disregarded, runs_here
        )


def _local_records(runs: Path) -> JobRecords:
    """The runs of this machine; with the states from Slurm if one of them is a batch job."""
    if not any_mark(runs):
        return LocalRuns(runs)
    from ..features.slurm.batch_runs import BatchRuns

    return BatchRuns(runs, LocalRuns(runs))


def _routes(job: str, options: RecordOptions) -> Iterator[tuple[Sequence[Host], Access, bool]]:
    """The hosts that may have a job, or without an id any job; how to reach them; whether it is its head."""
    hosts, runs = options.hosts, options.runs_folder
    record = hosts_record.find(runs, job) if job else None if hosts else hosts_record.newest_elsewhere(runs)
    if record:
        _note_own_hosts(job, record, hosts)
        is_head = record.detached and bool(job)
        yield record.with_runs, _with(record.access, options), is_head
    file = options.hosts_file
    if (hosts or file.is_file()) and not (record and job):
        if job:
            _note_unrecorded(job, file)
        yield hostfile.load(file), access_beside(file, options.python, python_here(options)), False


def names_job(word: str, runs: Path) -> bool:
    """Whether a word that may be a path is the id of a job, or at least four characters of its end.

    The end counts only for jobs that this machine knows.
    """
    ids = filter(is_job_id, (folder.name for folder in runs.glob("*/")))
    return is_job_id(word) or (len(word) >= SHORT_ID and any(each.endswith(word) for each in ids))


def route_to(state: JobState, search: JobSearch, options: RecordOptions) -> tuple[Sequence[Host], Access]:
    """The hosts that a job may use, and how to reach them: by its record, else by the hosts file."""
    hosts, runs = options.hosts, options.runs_folder
    record, is_reported = hosts_record.find(runs, state.job), bool(search.job and search.connected)
    if record and not is_reported:
        _note_own_hosts(state.job, record, hosts)
    if record and {*state.hosts} <= {host.name for host in record.hosts}:
        record.require_planned(state)
        return record.hosts, _with(record.access, options)
    file = options.hosts_file
    if not (hosts or file.is_file()):
        names = fold_names(state.hosts)
        raise UsageError(
            f"{state.job}: no record here of how to reach {names}; name a hosts file: --hosts FILE"
        )
    listed = hostfile.load(file)
    if not {*state.hosts} & {host.name for host in listed}:
        names = fold_names(state.hosts)
        raise UsageError(
            f"{state.job} is on {names}, and {file} has none of these; name another hosts file: --hosts FILE"
        )
    if record or not is_reported:
        _note_unrecorded(state.job, file)
    return listed, access_beside(file, options.python, python_here(options))


def _note_own_hosts(job: str, record: HostsRecord, hosts: str) -> None:
    """Print that the job's own hosts are asked, if the user named a file with other hosts."""
    if hosts and {host.name for host in record.hosts} - {host.name for host in hostfile.load(Path(hosts))}:
        print_note(
            f"{job}: its own hosts are asked, which its launch has recorded, not those of --hosts {hosts}"
        )


def _note_unrecorded(job: str, file: Path) -> None:
    print_note(f"{job}: no record here of how its hosts are reached, so the hosts of {file} are asked")


def _with(access: Access, options: RecordOptions) -> Access:
    return replace(access, python=options.python or access.python, here=python_here(options))


@contextlib.contextmanager
def locate(job: str, options: RecordOptions, *, default: Default | None = None) -> Iterator[LocatedJob]:
    """The job with this id, or whose id ends so, while the hosts that have it are connected.

    The path of a run's folder may stand for the id: it may be a copy from elsewhere.
    `default`: the job without an id; stderr names it.
    """
    if not (job or default):
        raise UsageError("which job? its id is in the first line of a launch; muster status lists all")
    if job and (copied := _of_folder(Path(job))):
        yield copied
        return
    with look(job, options) as search:
        if job or not default:
            yield search.named(job)
        else:
            chosen = search.default(default)
            print_which(chosen.state.job, search.lines)
            yield chosen


def _of_folder(folder: Path) -> LocatedJob | None:
    """The job whose run is in this folder. Its id is the name of the folder, also of a renamed one."""
    if not (folder / "job.json").is_file():
        return None
    records, name = LocalRuns(folder.resolve().parent), folder.resolve().name
    return next(
        (LocatedJob(replace(each, job=name), records) for each in records.ask(JOBS, job=name).jobs), None
    )


def print_which(job: str, silent: Iterable[str]) -> None:
    """Name the job of a command without an id, on stderr: programs may read stdout.

    `silent`: lines about hosts that cannot be asked, and so may have a newer job.
    """
    for line in (*silent, f"job {job}"):
        print_note(line)


def require_logs(located: LocatedJob) -> None:
    """`UsageError` for a job whose driver runs in a terminal elsewhere: its head has no logs."""
    state = located.state
    if located.records.host and not state.detached:
        where = harmless(f"{state.driver.host}, in {state.driver_folder}")
        if state.running:
            raise UsageError(f"the driver of {state.job} runs in a terminal; its output is on {where}")
        raise UsageError(
            f"{state.job} has ended; its launch wrote its output on {where}. If that folder was moved or "
            "copied, write its path instead of the id of the job"
        )
