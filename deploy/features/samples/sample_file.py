"""The files of a run's samples, `samples.jsonl`, and of its pace, `pace.jsonl`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from ...core.decode import MALFORMED, AtMost, Between, from_json
from ...core.hosts.bounds import Name, Rank, Seconds
from ...core.job.bounded import LONGEST_LINE
from ..why.lateness import Pace
from ..why.messages import Straggler
from .messages import HostSample, as_line, of_line

SAMPLES, PACE = "samples.jsonl", "pace.jsonl"
MOST_FILE = 1 << 29  # bytes: all samples of 8 hosts with 8 ranks and 8 GPUs each for almost four hours
MOST_RANKS = 256
"""Of more ranks, a line of the pace has those that work longest on a step."""


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
        self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115  # as long as the run
        self.problem: OSError | None = None
        """Why the file ends early; None as long as it grows."""

    def add(self, sample: HostSample) -> None:
        """Append a sample, unless its host has used up its share. An error ends the file, not the job."""
        line = as_line(sample).encode()
        share = self._shares.setdefault(sample.host, _Share(self._room))
        if self.problem or self._left < len(line) or not share.accepts(len(line)):
            return
        self._left -= len(line)
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            self.problem = error

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


class SampleReader:
    """Reads samples from the bytes of a file as they arrive. It skips damaged lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, content: bytes) -> Iterator[HostSample]:
        """The samples that these bytes complete. The first bytes may be from the middle of a line."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            self._rest = b""
        for line in lines:
            with contextlib.suppress(ValueError):
                yield of_line(line)


@dataclass(frozen=True)
class RankLook:
    """A rank in a line of the pace: the seconds of a step that it works, and that the others wait for it."""

    rank: Rank
    host: Name
    own_seconds: Seconds
    late_seconds: Seconds
    late: bool


@dataclass(frozen=True)
class PaceLook:
    """The part of a line of the pace that is read."""

    attempt: Annotated[int, Between(0, 1 << 20)]
    steps: Annotated[int, Between(0, 1 << 20)]
    ranks: Annotated[tuple[RankLook, ...], AtMost(MOST_RANKS)]


def pace_look(record: object) -> PaceLook | None:
    """A decoded line of pace.jsonl; None for a malformed one."""
    try:
        look: PaceLook = from_json(PaceLook, record)
    except MALFORMED:
        return None
    return look


def pace_line(at: float, attempt: int, pace: Pace, late: Sequence[Straggler]) -> str:
    """The pace of a running attempt as a line, with its newline. Times in seconds."""
    ranks = sorted(sorted(pace.ranks, key=lambda rank: -rank.own)[:MOST_RANKS], key=lambda rank: rank.rank)
    record = {
        "at": round(at, 3),
        "attempt": attempt,
        "group": pace.group,
        "steps": pace.steps,
        "step_seconds": round(pace.step_seconds, 6),
        "regular": pace.regular,
        "ranks": [
            asdict(RankLook(rank.rank, rank.host, round(rank.own, 6), round(rank.late, 6), rank.is_late))
            for rank in ranks
        ],
        "late": [straggler.as_json() for straggler in late],
    }
    return json.dumps(record, separators=(",", ":")) + "\n"
