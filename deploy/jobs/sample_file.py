"""The files of a run's samples, `samples.jsonl.gz`, and of its pace, `pace.jsonl`.

Samples are written line by line, readable up to where they are cut: gzip in members of about 1 MiB, so that a
reader may also begin in the middle. `gzip -dc` and Python's gzip module read all of it. Each line is flushed,
so a driver that is killed leaves what it has measured.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from ..connect.requests.why import Straggler
from ..decode import MALFORMED, AtMost, Between, from_json
from ..hosts.bounds import Name, Rank, Seconds
from ..hosts.samples import HostSample, as_line, of_line
from ..why.lateness import Pace
from .bounded import GZIP, LONGEST_LINE, MOST_RATIO

SAMPLES, PACE = "samples.jsonl.gz", "pace.jsonl"
MOST_FILE = 1 << 28  # bytes: 8 hosts of 8 ranks and 8 GPUs are kept in full for most of a day
MEMBER = 1 << 20
MOST_RANKS = 256
"""Of more ranks, a line of the pace has those that work longest on a step."""
HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00"
"""How each member begins: gzip, deflate, no name and no time."""


class _Share:
    """The bytes that one host may still write. After each quarter of the rest, fewer samples are kept."""

    def __init__(self, room: int) -> None:
        self._room, self._used, self._stride, self._passed = room, 0, 1, 0

    def accepts(self, size: int) -> bool:
        """Whether to keep the next sample, of at most so many bytes."""
        self._passed += 1
        return self._passed % self._stride == 0 and size + self._used < self._room

    def add(self, size: int) -> None:
        """Count the bytes of a sample."""
        self._used += size
        if self._used > self._room // 4:
            self._room, self._used, self._stride = self._room - self._used, 0, 2 * self._stride


class SampleFile:
    """Appends samples. `hosts`: their number; each has the same share of the room."""

    def __init__(self, path: str, hosts: int) -> None:
        self._room = MOST_FILE // max(1, hosts)
        self._shares: dict[str, _Share] = {}
        self._left = MOST_FILE
        self._member = 0
        self._packer = _packer()
        self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115  # as long as the run
        self.problem: OSError | None = None
        """Why the file ends early; None as long as it grows."""

    def add(self, sample: HostSample) -> None:
        """Append a sample, unless its host has used up its share. An error ends the file, not the job."""
        line = as_line(sample).encode()
        share = self._shares.setdefault(sample.host, _Share(self._room))
        if self.problem or self._left <= len(line) or not share.accepts(len(line)):
            return
        packed = self._packer.compress(line) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        share.add(len(packed))
        self._member += len(packed)
        if self._member > MEMBER:
            packed += self._packer.flush()
            self._packer, self._member = _packer(), 0
        self._left -= len(packed)
        self._write(packed)

    def close(self) -> None:
        """Complete the last gzip member. An interrupted end of a run may call it twice."""
        if not self.problem and self._member:
            self._member = 0
            self._write(self._packer.flush())
        with contextlib.suppress(OSError):
            self._file.close()

    def _write(self, content: bytes) -> None:
        try:
            while content:
                content = content[self._file.write(content) :]
        except OSError as error:
            self.problem = error


class SampleReader:
    """Reads samples from the bytes of a file as they arrive. It skips damaged parts."""

    def __init__(self) -> None:
        self._unpacker = zlib.decompressobj(GZIP)
        self._lost, self._packed, self._rest = True, b"", b""

    def feed(self, content: bytes) -> Iterator[HostSample]:
        """The samples that these bytes complete. The first bytes may be from the middle of a file."""
        self._packed += content
        while self._packed:
            if self._lost and not self._find_member():
                return
            lines = self._unpack()
            for line in lines:
                with contextlib.suppress(ValueError):
                    yield of_line(line)

    def _find_member(self) -> bool:
        """Skip to the next member; returns whether it was found."""
        start = self._packed.find(HEAD)
        if start < 0:
            self._packed = self._packed[1 - len(HEAD) :]
            return False
        self._packed, self._rest = self._packed[start:], b""
        self._unpacker, self._lost = zlib.decompressobj(GZIP), False
        return True

    def _unpack(self) -> list[bytes]:
        """The complete lines in the bytes of a member so far."""
        packed, self._packed = self._packed, b""
        try:
            plain = self._unpacker.decompress(packed, MOST_RATIO * len(packed) + LONGEST_LINE)
        except zlib.error:
            self._lost, self._packed = True, packed[1:]
            return []
        if self._unpacker.unconsumed_tail:
            self._lost = True
            return []
        if self._unpacker.eof:
            self._lost, self._packed = True, self._unpacker.unused_data
        *lines, self._rest = (self._rest + plain).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            self._rest = b""
        return lines


def _packer() -> zlib._Compress:
    return zlib.compressobj(6, zlib.DEFLATED, GZIP)


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
