"""The source of the records of `muster top`: the folder of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath

from ...core.connect.requests import FILES, OUTPUT, READ
from ...core.errors import MusterError
from ...core.hosts.host_sample import SAMPLES, HostSample, of_line
from ...core.job.find import LocatedJob, line_of, state_of
from ...core.wire.rank_logs import RankLog
from .top_history import PrintedText, TopRecord

CHUNK_BYTES, BACK = 1 << 20, 1 << 23  # of a request; of samples from before: some minutes of 64 hosts
TAIL, LONG_TAIL, MOST_TAILS = 1 << 12, 1 << 17, 256  # bytes of a log and of rank 0's, and logs, from before
ROUNDS = 8  # of output at one look; faster output is skipped


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


class JobSource:
    """A job: its samples, its output, its state, from the machine with its folder.

    Both methods wait for that machine, so a separate thread calls them.
    """

    def __init__(self, located: LocatedJob) -> None:
        self._located, self._job, self._state = located, located.state.job, located.state
        self._samples = GrowingFile(self._read, SAMPLES, CHUNK_BYTES)

    def begin(self) -> Iterator[TopRecord]:
        """Earlier records: its state, its last samples, and the last line of each rank."""
        yield self._located.state
        # Before the logs are read: a line may come twice then, but none is missed.
        self._located.records.ask(OUTPUT, job=self._job, rank=None, skip=True)
        files = dict(self._located.records.ask(FILES, job=self._job).files)
        self._samples.skip(files, BACK)
        yield from self._new_samples()
        logs = [name for name in sorted(files) if files[name] and _attempt_of(name) == self._state.attempt]
        # Errors come last, as those of the rank that failed: the screen shows the end of the log.
        for name in sorted(logs[:MOST_TAILS], key=lambda name: (name.endswith(".err"), name)):
            most = LONG_TAIL if "rank-0000@" in name else TAIL
            text = self._read(name, max(0, files[name] - most), most).decode(errors="replace")
            yield from self._printed(name, text.partition("\n")[2] if files[name] > most else text, old=True)

    def look(self) -> Iterator[TopRecord]:
        """New records: the state first, as it may begin another attempt; then samples and lines."""
        self._state = state_of(self._located)
        yield self._state
        yield from self._new_samples()
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
