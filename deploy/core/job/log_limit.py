"""Limits each log in a run's folder. A log that reaches the limit keeps its beginning and its last lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..text.text import span
from ..wire.rank_logs import RankLog

ORDER_BYTES = 64  # about the size of an entry in the order of all logs, which grows with each log
LAST_BYTES = 1 << 13
"""Of each log that is cut, this much of its end is kept beyond the limit."""


@dataclass
class _Log:
    """A log: how much it may still grow; once it is cut, what is left out, and the end of that part."""

    host: str
    left: int
    left_out: int = 0
    last: bytearray = field(default_factory=bytearray)


class LogLimit:
    """The limit of each log of an attempt: `most` bytes, 0 for no limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._logs: dict[str, _Log] = {}

    def begin(self) -> None:
        """Another attempt begins, whose logs are other files."""
        self._logs = {}

    def within(self, name: str, host: str, content: bytes) -> bytes:
        """The part of the content that its log takes: all, once a note that it is cut here, then nothing."""
        if not self._most:
            return content
        log = self._logs.setdefault(name, _Log(host, self._most))
        log.left -= len(content) + ORDER_BYTES
        if log.left >= 0:
            return content
        is_first, log.left = not log.left_out, -1
        log.left_out += len(content)
        log.last = (log.last + content)[-LAST_BYTES:]
        return f"\n[cut here, {host} has all of it: --max-log {self._most}]\n".encode() if is_first else b""

    @property
    def _cut(self) -> dict[str, _Log]:
        return {name: log for name, log in self._logs.items() if log.left_out}

    def ends(self) -> Iterator[tuple[str, bytes]]:
        """The end of each log that is cut, to be appended when the attempt is over."""
        for name, log in self._cut.items():
            last = bytes(log.last)
            if log.left_out > len(last):  # begin with a whole line, if there is one
                last = last[last.find(b"\n") + 1 :]
            missing = log.left_out - len(last)
            yield name, (f"[{missing} bytes are left out]\n".encode() if missing else b"") + last

    @property
    def note(self) -> str:
        """The note of the verdict about logs that are cut; empty if none is."""
        logs = {name: RankLog.of_name(name) for name in self._cut}
        ranks = sorted({log.rank for log in logs.values() if log})
        launchers = sorted({self._logs[name].host for name, log in logs.items() if not log})
        of_launchers = [f"the launcher on {', '.join(launchers)}"] if launchers else []
        whose = " and ".join([*([span(ranks)] if ranks else []), *of_launchers])
        return whose and (
            f"here the logs of {whose} have only their beginning and their end: "
            f"--max-log {self._most} bytes for each log; the hosts have all"
        )
