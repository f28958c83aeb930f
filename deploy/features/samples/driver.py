"""Samples of the hosts of a running attempt. Nothing here can fail a job.

A host that sends malformed samples, or more than requested, loses only its samples, and the verdict notes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ...core.connect.reports import Report
from ...core.connect.requests import Nothing, Request
from ...core.decode import MALFORMED
from ...core.hosts.host_sample import SAMPLES, HostSample, as_line, of_json
from ...core.job.events import Event, Reported
from ...core.job.feature import Attempt, Feature
from ...core.job.result import LaunchResult
from ...core.text.text import count
from ...core.wire.clock import now
from ...core.wire.frames import Frame
from ...core.wire.os_errors import explain


@dataclass(frozen=True)
class Sampled(Report, event="sample"):
    """A sample of a host and its ranks; None for a malformed one: the host loses only this sample."""

    sample: HostSample | None

    @classmethod
    def of(cls, frame: Frame) -> Sampled:
        """The sample in a frame: JSON in a text, so that no value in it is a protocol error.

        The driver adds its time and host (features/samples/driver.py).
        """
        try:
            return cls(of_json({**json.loads(frame["sample"]), "at": 0, "host": "", "attempt": 0}))
        except MALFORMED:
            return cls(None)


WATCH = Request("watch", Nothing)


MOST_FILE = 1 << 29  # bytes: all samples of 8 hosts with 8 ranks and 8 GPUs each for almost four hours


class _Share:
    """The bytes that one host may still write. After each quarter of the rest, fewer samples are kept."""

    def __init__(self, room: int) -> None:
        self._room, self._used, self._stride, self._passed = room, 0, 1, 0

    def accepts(self, size: int) -> bool:
        """Count a sample of so many bytes; returns whether to keep it."""
        self._passed += 1
        if self._passed % self._stride or size + self._used >= self._room:
            return False
        self._used += size
        if self._used > self._room // 4:
            self._room, self._used, self._stride = self._room - self._used, 0, 2 * self._stride
        return True


class SampleFile:
    """Appends samples. `hosts`: their number; each has the same share of MOST_FILE."""

    def __init__(self, path: str, hosts: int) -> None:
        self._room, self._left = MOST_FILE // max(1, hosts), MOST_FILE
        self._shares: dict[str, _Share] = {}
        self.problem: OSError | None = None
        """Why the file ends early; None as long as it grows."""
        self._file: IO[bytes] | None = None
        try:
            self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115  # as long as the run
        except OSError as error:
            self.problem = error

    def add(self, sample: HostSample) -> None:
        """Append a sample, unless its host has used up its share. An error ends the file, not the job."""
        line = as_line(sample).encode()
        share = self._shares.setdefault(sample.host, _Share(self._room))
        if self._file is None or self.problem or self._left < len(line) or not share.accepts(len(line)):
            return
        self._left -= len(line)
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            self.problem = error

    def close(self) -> None:
        if self._file:
            with contextlib.suppress(OSError):
                self._file.close()


SAMPLE_SECONDS = 2.0
LEAST_SECONDS = 0.5  # between two samples of a host: more come only from a host that floods
FLOOD = 100  # samples that came too early: some also come at once after a break of the network


class Sampling(Feature):
    """Asks every host for samples, passes them on as events, and keeps them in `samples.jsonl`."""

    hears = (Sampled,)

    def __init__(self) -> None:
        self._file: SampleFile | None = None

    def begins(self, attempt: Attempt) -> None:
        """No host is asked yet: a host begins to sample after it has started its launcher."""
        self._attempt, self._is_asked = attempt, False
        self._last: dict[str, float] = {}
        self._malformed, self._excess = Counter[str](), Counter[str]()
        if self._file is None:
            self._file = SampleFile(str(attempt.folder.path / SAMPLES), len(attempt.plan.hosts))

    def turn(self, attempt: Attempt) -> None:
        """Ask every host once, and do not wait for the answers."""
        if not self._is_asked:
            self._is_asked = True
            for channel in attempt.cluster.channels.values():
                channel.post(WATCH, every=SAMPLE_SECONDS)

    def on_event(self, event: Event) -> None:
        """Take the report of a host."""
        if isinstance(event, Reported) and isinstance(event.report, Sampled):
            self._take(event.host, event.report)
        elif isinstance(event, HostSample) and self._file:
            self._file.add(event)

    def ended(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """Note the hosts whose samples were dropped."""
        malformed = [
            f"{host}: {count(number, 'malformed sample')} dropped" for host, number in self._malformed.items()
        ]
        excess = [
            f"{host}: {number} samples more than requested; dropped"
            for host, number in self._excess.items()
            if number > FLOOD
        ]
        return dataclasses.replace(result, notes=(*result.notes, *malformed, *excess))

    def over(self, result: LaunchResult) -> LaunchResult:
        """Close the file, and note why it ends early, if it does."""
        if self._file:
            self._file.close()
        if self._file is None or self._file.problem is None:
            return result
        note = f"here: {SAMPLES} ends early: {explain(self._file.problem)}"
        return dataclasses.replace(result, notes=(*result.notes, note))

    def _take(self, host: str, report: Sampled) -> None:
        """Pass a sample on with the time, and with those of its ranks that the plan has on that host."""
        at = round(now(), 3)
        if at - self._last.get(host, 0.0) < LEAST_SECONDS:
            self._excess[host] += 1
            return
        if report.sample is None:
            self._malformed[host] += 1
            return
        self._last[host] = at
        placed, attempt = self._attempt.state.placed, self._attempt.plan.spec.attempt
        ranks = {entry.rank: entry for entry in report.sample.ranks}
        planned = (entry for rank, entry in ranks.items() if rank in placed and placed[rank].host == host)
        self._attempt.emit(
            dataclasses.replace(report.sample, at=at, host=host, attempt=attempt, ranks=tuple(planned))
        )
