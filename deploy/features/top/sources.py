"""The sources of the records of `muster top`: the folder of a run, or hosts without a job."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Protocol

from ...core.connect.channel import Channel
from ...core.connect.cluster import Cluster
from ...core.connect.fanout import in_thread
from ...core.connect.pipe import LostError, why_lost
from ...core.connect.requests.hosts import SAMPLE, HostSampled
from ...core.connect.requests.jobs import FILES, OUTPUT, READ
from ...core.decode import MALFORMED, from_json
from ...core.errors import MusterError
from ...core.hosts.host_sample import SAMPLES, HostSample, of_line
from ...core.job.bounded import value_of
from ...core.job.find import LocatedJob, line_of, state_of
from ...core.job.reconnect import TRY_SECONDS
from ...core.wire.rank_logs import RankLog
from .top_history import PaceLook, PrintedText, TopRecord, Unreached

CHUNK_BYTES, BACK = 1 << 20, 1 << 23  # of a request; of samples from before: some minutes of 64 hosts
TAIL, LONG_TAIL, MOST_TAILS = 1 << 12, 1 << 17, 256  # bytes of a log and of rank 0's, and logs, from before
ROUNDS = 8  # of output at one look; faster output is skipped
LONGEST_PACE = 1 << 16  # bytes of a line of pace.jsonl


class GrowingFile:
    """The lines of a file of a run. The first one may be cut, as a look begins near the end of the file."""

    def __init__(self, read: Callable[[str, int, int], bytes], name: str, chunk: int) -> None:
        """`read`: by name, start and most bytes. `chunk`: the most bytes of a request, and of a line."""
        self._read, self._name, self._chunk = read, name, chunk
        self._start, self._rest = 0, b""

    def skip(self, files: Mapping[str, int], last: int) -> None:
        """Begin so many bytes before the end. `files`: the sizes by name."""
        self._start = max(0, files.get(self._name, 0) - last)

    def lines(self) -> Iterator[bytes]:
        """The lines that are complete since the last call."""
        while content := self._read(self._name, self._start, self._chunk):
            self._start += len(content)
            *lines, rest = (self._rest + content).split(b"\n")
            self._rest = rest[-self._chunk :]
            yield from lines


class RecordSource(Protocol):
    """Gives records. Both methods wait for hosts, so a separate thread calls them."""

    def begin(self) -> Iterator[TopRecord]:
        """Earlier records."""

    def look(self) -> Iterator[TopRecord]:
        """Records since the last call."""


class JobSource:
    """A job: its samples, its output, its state, from the machine with its folder."""

    def __init__(self, located: LocatedJob) -> None:
        self._located, self._job, self._state = located, located.state.job, located.state
        self._samples = GrowingFile(self._read, SAMPLES, CHUNK_BYTES)
        self._pace = GrowingFile(self._read, "pace.jsonl", LONGEST_PACE)

    def begin(self) -> Iterator[TopRecord]:
        """Its state, its last samples, and the last line of each rank."""
        yield self._located.state
        # Before the logs are read: a line may come twice then, but none is missed.
        self._located.records.ask(OUTPUT, job=self._job, rank=None, skip=True)
        files = dict(self._located.records.ask(FILES, job=self._job).files)
        self._samples.skip(files, BACK)
        self._pace.skip(files, LONGEST_PACE)
        yield from self._new_samples()
        logs = [name for name in sorted(files) if files[name] and _attempt_of(name) == self._state.attempt]
        # Errors come last, as those of the rank that failed: the screen shows the end of the log.
        for name in sorted(logs[:MOST_TAILS], key=lambda name: (name.endswith(".err"), name)):
            most = LONG_TAIL if "rank-0000@" in name else TAIL
            text = self._read(name, max(0, files[name] - most), most).decode(errors="replace")
            yield from self._printed(name, text.partition("\n")[2] if files[name] > most else text, old=True)

    def look(self) -> Iterator[TopRecord]:
        """The state first, as it may begin another attempt; then new samples and lines."""
        self._state = state_of(self._located)
        yield self._state
        yield from self._new_samples()
        yield from [look for line in self._pace.lines() if (look := look_of(line))][-1:]  # the newest
        for _ in range(ROUNDS):
            answer = self._located.records.ask(OUTPUT, job=self._job, rank=None, skip=False)
            for name, text in answer.output:
                yield from self._printed(f"logs/{name}", text)
            if not answer.more:
                break
        else:
            self._located.records.ask(OUTPUT, job=self._job, rank=None, skip=True)

    def _new_samples(self) -> Iterator[HostSample]:
        for line in self._samples.lines():
            with contextlib.suppress(ValueError):  # a damaged line
                sample = of_line(line)
                for entry in sample.ranks:
                    self._state.require_own(entry.rank, sample.host, sample.attempt)
                yield sample

    def _printed(self, name: str, text: str, *, old: bool = False) -> Iterator[PrintedText]:
        if _attempt_of(name) is not None:
            line = line_of(self._state, PurePosixPath(name).name, text)
            if line.rank is not None:
                yield PrintedText(line.rank, line.host, text, old=old)

    def _read(self, name: str, start: int, most: int) -> bytes:
        """A part of a file of the run; empty without the file, as in runs of older versions."""
        with contextlib.suppress(MusterError):
            records = self._located.records
            return records.ask(READ, job=self._job, name=name, start=start, most=most).payload[:most]
        return b""


def _attempt_of(name: str) -> int | None:
    """The attempt of the log of a rank; None for another file."""
    folder, _, file_name = name.rpartition("/")
    log = RankLog.of_name(file_name) if folder.removeprefix("./") == "logs" else None
    return log.attempt if log else None


def look_of(line: bytes) -> PaceLook | None:
    """The look of a line of pace.jsonl; None for a malformed line."""
    with contextlib.suppress(*MALFORMED):
        look: PaceLook = from_json(PaceLook, value_of(line))
        return look
    return None


class HostSource:
    """Hosts without a job: each is asked for a sample, again and again.

    A lost connection is opened again, with retries for a minute.
    """

    def __init__(self, cluster: Cluster, errors: Mapping[str, MusterError]) -> None:
        self._cluster, self._errors = cluster, errors
        self._asked: dict[str, Future[HostSampled]] = {}
        self._again: dict[str, Future[Channel]] = {}
        """The hosts with a new connection under way."""
        self._until: dict[str, float] = {}
        """The hosts with a lost connection, and the time of the last retry."""

    def begin(self) -> Iterator[TopRecord]:
        """The unreachable hosts; the others are asked for a first reading."""
        for name, error in self._errors.items():
            yield Unreached(name, error.reason)
        self._ask()

    def look(self) -> Iterator[TopRecord]:
        """The sample of each host that has answered since the last call, and each lost host."""
        self._cluster.look_at_clocks()
        lost: dict[str, MusterError] = {
            name: error for name, error in self._cluster.losses().items() if name not in self._until
        }
        for name, future in [*self._asked.items()]:
            if future.done():
                del self._asked[name]
                if isinstance(error := future.exception(), LostError):
                    lost[name] = error
                else:
                    self._until.pop(name, None)
                    yield from _answered(name, future)
        for name, again in [*self._again.items()]:
            if again.done():
                del self._again[name]
                if isinstance(error := again.exception(), MusterError):
                    lost[name] = error
        for name, error in lost.items():
            yield Unreached(name, self._connect_again(name, error))
        self._ask()

    def _connect_again(self, name: str, error: MusterError) -> str:
        """Connect to a host again, or give it up; returns the reason for the user."""
        why = why_lost(error, error.reason) if isinstance(error, LostError) else error.reason
        self._asked.pop(name, None)
        if time.monotonic() >= self._until.setdefault(name, time.monotonic() + TRY_SECONDS):
            return f"{why}; start muster top again to connect again"
        self._again[name] = in_thread(self._cluster.channels[name].reopen)
        return f"{why}; connecting again"

    def _ask(self) -> None:
        for name, channel in self._cluster.channels.items():
            left = name in self._until and channel.ended
            if name not in self._asked and name not in self._again and not left:
                self._asked[name] = channel.post(SAMPLE)


def _answered(name: str, future: Future[HostSampled]) -> Iterator[TopRecord]:
    try:
        yield replace(of_line(future.result(0).sample), host=name, at=time.time())
    except MusterError as error:
        yield Unreached(name, error.reason)
    except ValueError:
        pass  # malformed: the host stays without a sample
