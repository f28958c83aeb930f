"""Names of the files that an attempt of a job writes: `rank-0007@node2.restart-1.err`, `plan.restart-1.txt`.

A host and the folder of a run have the same names. The ends of ranks lie beside their logs, as `.json`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_RESTART = re.compile(r"\.restart-(\d{1,9})(?=\.)")
_NAME = re.compile(
    r"rank-(?P<rank>\d{4,9})@(?P<host>.+?)(?:\.restart-(?P<attempt>\d{1,9}))?\.(?P<stream>out|err)"
)


class RankLog(NamedTuple):
    """The log of one stream of a rank."""

    rank: int
    host: str
    attempt: int
    stream: str

    @classmethod
    def of_name(cls, name: str) -> RankLog | None:
        """The log with this file name; None for another file."""
        match = _NAME.fullmatch(name)
        return match and cls(int(match["rank"]), match["host"], int(match["attempt"] or 0), match["stream"])

    @property
    def name(self) -> str:
        return f"{rank_stem(self.rank, self.host, self.attempt)}.{self.stream}"


def rank_stem(rank: int, host: str, attempt: int) -> str:
    """The beginning of the names of a rank's files in one attempt."""
    return f"rank-{rank:04d}@{host}{restart_suffix(attempt)}"


def restart_suffix(attempt: int) -> str:
    """The part of a file name that stands for an attempt; the first attempt has none."""
    return f".restart-{attempt}" if attempt else ""


def attempt_in(name: str) -> int:
    """The attempt that wrote the file with this name."""
    match = _RESTART.search(name)
    return int(match[1]) if match else 0
