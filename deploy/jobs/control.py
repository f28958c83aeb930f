"""Finds jobs on this machine or on hosts by their id, reads and follows their output, and ends them."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol

from ..common.durable import sync_file_system
from ..common.rank_logs import RankLog
from ..common.runs import JobFolders
from ..connect.fanout import on_every
from ..connect.requests.jobs import END_DRIVER, FILES, JOBS, OUTPUT, READ, JobState
from ..connect.requests.request import Answer, Request
from ..errors import MusterError, UsageError
from ..hosts.received_paths import inner_paths
from .hosts_record import NAME as HOSTS

POLL_SECONDS = 0.3
STOP_SECONDS = 20.0
CHUNK = 1 << 20
LISTED = 10
MOST_BYTES = 1 << 36  # more than any run has; a bound so that no host can fill this machine's disk
SPARE_SHARE, MOST_SPARE = 20, 1 << 30  # a twentieth of the disk stays free, or 1 GiB where that is less
BLOCK = 1 << 12  # of a disk: a file of one byte takes as much
_OURS = frozenset({"slurm.json", "stop.json", "report.html", HOSTS})
"""Files that only this machine may write into its copy of a run. It acts upon the first two: `muster stop`
ends the job of Slurm that slurm.json names. The third is a page, which a browser opens as ours. The last says
where commands log in, and by which SSH configuration."""


class Place(Protocol):
    """A place where jobs are: a host at the end of a channel, or this machine."""

    @property
    def host(self) -> str: ...
    def ask(
        self, request: Request[Answer], payload: bytes = b"", *, seconds: float = 30.0, **words: Any
    ) -> Answer: ...


class Here:
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
        self, request: Request[Answer], payload: bytes = b"", *, seconds: float = 30.0, **words: Any
    ) -> Answer:
        """The answer that an agent would give."""
        try:
            answer = self._answers[request](words, payload)
            return request.read(answer, answer.get("payload", b""))
        except OSError as error:
            raise MusterError(f"{error.filename}: {error.strerror}") from None
        except ValueError as error:
            raise MusterError(f"here: {error}") from None


class Known(NamedTuple):
    """A job, and the place that knows it."""

    state: JobState
    place: Place


class Line(NamedTuple):
    """Printed text: whole lines of a rank, or a line of the launcher or the driver, which has no rank."""

    rank: int | None
    host: str
    stream: str
    text: str


def known_to(
    places: Sequence[Place], job: str = "", on_error: Callable[[str, MusterError], None] | None = None
) -> list[Known]:
    """Every job of these places, oldest first; with `job`, only that one. The first place with a job counts.

    `on_error` is called for each place that gives no answer. Without it, such a place is an error.
    """
    by_host = {place.host: place for place in places}
    asked = on_every(by_host, lambda host: by_host[host].ask(JOBS, job=job))
    if on_error is None:
        asked.require_all()
    else:
        for host, error in asked.errors.items():
            on_error(host, error)
    return merged(
        Known(state, by_host[host]) for host, answer in asked.results.items() for state in answer.jobs
    )


def merged(found: Iterable[Known]) -> list[Known]:
    """Each job once, oldest first: the first place that has it counts."""
    by_job: dict[str, Known] = {}
    for known in found:
        by_job.setdefault(known.state.job, known)
    return sorted(by_job.values(), key=lambda known: (known.state.started, known.state.job))


def only(known: Sequence[Known], job: str, looked: str) -> Known:
    """The job with this id, or the only job whose id ends so. `UsageError` lists the jobs that there are."""
    matching = [entry for entry in known if entry.state.job == job] or [
        entry for entry in known if job and entry.state.job.endswith(job)
    ]
    if len(matching) == 1:
        return matching[0]
    listed = ", ".join(f"{entry.state.job} ({entry.state.state})" for entry in (matching or known)[-LISTED:])
    if matching:
        raise UsageError(f"several jobs end in {job}: {listed}")
    raise UsageError(f"no job {job} {looked}; there {'are: ' + listed if listed else 'is none at all'}")


def newest(known: Sequence[Known], looked: str, *, running: bool) -> Known:
    """The newest of the jobs, or of those that run: the job of a command that was given none."""
    if found := [entry for entry in known if entry.state.running or not running]:
        return found[-1]
    raise UsageError(f"no job {'runs' if running else 'is'} {looked}; muster status lists all jobs")


def state_of(known: Known) -> JobState:
    """The state of the job now."""
    states = known.place.ask(JOBS, job=known.state.job).jobs
    if not states:
        raise MusterError(f"{known.state.job}: its folder {known.state.folder} is gone")
    return states[0]


def printed(known: Known, *, rank: int | None, follow: bool, skip: bool = False) -> Iterator[Line]:
    """The output of the ranks in the order in which it came. With `follow`, until the job is over."""
    while True:
        state = state_of(known) if follow else known.state  # first, so that the last look misses nothing
        answer = known.place.ask(OUTPUT, job=known.state.job, rank=rank, skip=skip)
        skip = False
        yield from (line_of(state, name, text) for name, text in answer.output)
        if not answer.more:
            if not (follow and state.running):
                return
            time.sleep(POLL_SECONDS)


def stop(known: Known, by: str) -> JobState:
    """End the job on every host, unless it is over; returns its state afterwards.

    Its driver is asked to end it. A driver that does not do so in time is killed; then agents end the job.
    """
    for force in (False, True):
        if not state_of(known).running:
            break
        if not known.place.ask(END_DRIVER, job=known.state.job, by=by, force=force).told:
            driver = known.state.driver
            raise UsageError(
                f"{known.state.job} belongs to a terminal, process {driver.pid} on {driver.host}, and no "
                "agent there could tell it: stop it there"
            )
        deadline = time.monotonic() + STOP_SECONDS
        while state_of(known).running and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
    return state_of(known)


def fetch(known: Known, runs: Path) -> Path:
    """Bring the folder of a run here, whole or not at all. A run that is here already stays.

    The record of its hosts, which its launch has left here, stays beside what is brought.
    """
    target = runs / known.state.job
    if (target / "job.json").exists():
        return target
    try:
        runs.mkdir(parents=True, exist_ok=True)
        # Each call has its own draft: two users may attach to the same job at once.
        draft = Path(tempfile.mkdtemp(prefix=f".{known.state.job}.", suffix=".new", dir=runs))
        try:
            for name, size in _files(known, _room(runs)):
                _bring(known, name, size, draft / name)
            sync_file_system(draft)  # a folder that is here already is never brought again
            _settle(draft, target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        if not (target / "job.json").exists():  # else another call was first
            raise MusterError(f"{error.filename or runs}: {error.strerror or error}") from None
    return target


def listed(known: Known) -> list[tuple[PurePosixPath, int]]:
    """The files of a run with their sizes, as its host lists them; `MusterError` for a path not allowed."""
    files = known.place.ask(FILES, job=known.state.job).files
    inner_paths((name for name, _ in files), known.place.host)
    return [(PurePosixPath(name), size) for name, size in files]


def _settle(draft: Path, target: Path) -> None:
    """Give a run that was brought its name, with the record of its hosts that may be there already."""
    here, there = target / HOSTS, draft / HOSTS
    with contextlib.suppress(FileNotFoundError):
        here.replace(there)
    try:
        draft.rename(target)  # over an empty folder, if there is one
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            there.replace(here)
        raise


def _files(known: Known, room: int) -> list[tuple[PurePosixPath, int]]:
    """The files of a run with their sizes, in bytes; `MusterError` for what cannot be brought here.

    Files that this machine alone may write are left out.
    """
    host = known.place.host
    files = [(path, size) for path, size in listed(known) if not _is_ours(path)]
    total = sum(-(-size // BLOCK) * BLOCK for _, size in files)
    if total > min(MOST_BYTES, room):
        raise MusterError(
            f"{host}: the run has {total >> 20} MiB; there is room for {room >> 20} MiB here, and at most "
            f"{MOST_BYTES >> 20} MiB are brought: it is in {known.state.folder}"
        )
    return files


def _room(folder: Path) -> int:
    """The bytes that a run may take here: the disk keeps some for everything else."""
    disk = shutil.disk_usage(folder)
    return max(0, disk.free - min(disk.total // SPARE_SHARE, MOST_SPARE))


def _is_ours(path: PurePosixPath) -> bool:
    # On a Mac, Slurm.json is the same file as slurm.json.
    name = path.name.casefold()
    return len(path.parts) == 1 and (name in _OURS or name.startswith("lock."))


def _bring(known: Known, name: PurePosixPath, size: int, path: Path) -> None:
    """One file of a run, as many bytes as were announced."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("xb") as file:
        for start in range(0, size, CHUNK):
            answer = known.place.ask(READ, job=known.state.job, name=str(name), start=start, most=CHUNK)
            payload = answer.payload[:CHUNK]
            if len(payload) < min(CHUNK, size - start):
                raise MusterError(f"{known.place.host}: {name} ends before its {size} bytes; try again")
            file.write(payload[: size - start])


def line_of(state: JobState, name: str, text: str) -> Line:
    """What a log says; `MusterError` for a rank's on a host that does not have this rank."""
    log = RankLog.of_name(name)
    if log is None:
        return Line(None, "", name, text)
    state.require_own(log.rank, log.host, log.attempt)
    return Line(log.rank, log.host, log.stream, text)
