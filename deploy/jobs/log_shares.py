"""Limits the logs in a run's folder: every rank has the same share, and the end of every log is kept.

So a rank that prints without end displaces neither the traceback of another rank nor its own last lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..common.rank_logs import RankLog
from ..console.text import span
from ..plan.launch_plan import LaunchPlan

ORDER_BYTES = 64  # about the size of an entry in the order of all logs
LAST_BYTES = 1 << 13
"""Of each log that is cut, this much of its end is kept beyond the limit."""


@dataclass
class _CutLog:
    """A log that is cut. `last`: the end of the part that is left out."""

    host: str
    left_out: int = 0
    last: bytearray = field(default_factory=bytearray)


class LogShares:
    """The limit of a run's logs, divided. A rank cannot use the share of another one."""

    def __init__(self, most: int) -> None:
        self.most = most
        """The bytes that all logs together may take; 0 for no limit."""
        self._share = 0
        self._left: dict[str, int] = {}
        self._cut: dict[str, _CutLog] = {}

    def share_out(self, plan: LaunchPlan, used: int) -> None:
        """Divide the rest among the ranks of an attempt and the launcher of each host."""
        self._share = max(0, self.most - used) // (len(plan.ranks) + len(plan.hosts))
        self._left, self._cut = {}, {}

    def within(self, owner: str, host: str, log: str, content: bytes) -> bytes:
        """The content, if its owner's share has space for it; else once a note, then nothing.

        `owner`: the owner of the share, which all logs of a rank have in common. `log`: the name of the file.
        """
        if not self.most:
            return content
        cut, left = self._cut.get(log), self._left.get(owner, self._share)
        self._left[owner] = left = left - len(content) - ORDER_BYTES
        if cut is None and left >= 0:
            return content
        note = b""
        if cut is None:
            cut = self._cut[log] = _CutLog(host)
            where = f"{host} has all of it"
            note = f"\n[cut here, {where}: --max-log {self.most} is {self._share} for each rank]\n".encode()
        cut.left_out += len(content)
        cut.last = (cut.last + content)[-LAST_BYTES:]
        return note

    def ends(self) -> Iterator[tuple[str, bytes]]:
        """The end of each log that is cut, to be appended when the attempt is over."""
        for log, cut in self._cut.items():
            last = bytes(cut.last)
            if cut.left_out > len(last):  # begin with a whole line, if there is one
                last = last[last.find(b"\n") + 1 :]
            missing = cut.left_out - len(last)
            yield log, (f"[{missing} bytes are left out]\n".encode() if missing else b"") + last

    @property
    def note(self) -> str:
        """The note of the verdict about logs that are cut; empty if none is."""
        if not self._cut:
            return ""
        logs = {name: RankLog.of_name(name) for name in self._cut}
        ranks = sorted({log.rank for log in logs.values() if log})
        launchers = sorted(self._cut[name].host for name, log in logs.items() if not log)
        whose = _both(ranks, launchers)
        return (
            f"here the logs of {whose} have only their beginning and their end: "
            f"--max-log {self.most} is {self._share} bytes for each rank; the hosts have all"
        )


def _both(ranks: Sequence[int], launchers: Sequence[str]) -> str:
    of_launchers = [f"the launcher on {', '.join(launchers)}"] if launchers else []
    return " and ".join([*([span(ranks)] if ranks else []), *of_launchers])
