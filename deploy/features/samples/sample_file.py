"""The file of a run's samples, `samples.jsonl`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import IO

from ...core.hosts.host_sample import HostSample, as_line

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
