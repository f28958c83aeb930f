"""Ranks whose program is over while their process lives: a thread or a child keeps it alive."""

from __future__ import annotations

from dataclasses import dataclass

from ..connect.reports import ProgramOver
from ..console.terminal import harmless
from ..plan.placement import Place
from .result import Failure

SHOWN_SECONDS = 3.0
"""From an exception to the line about it: by then ranks that fail have ended, also on a busy machine."""
LATE_SECONDS = 10.0
"""After the time that a rank gives itself, the driver ends it: its interpreter may no longer run."""


@dataclass(frozen=True)
class Lingering:
    """Such a rank. `at`: on the driver's clock."""

    place: Place
    at: float
    report: ProgramOver

    @property
    def failed(self) -> bool:
        """Whether an exception ended its program."""
        return bool(self.report.error)

    @property
    def sentence(self) -> str:
        """`rank 1 (node2): ValueError: boom; thread 'writer' in save (a.py:3) keeps its process alive`."""
        report, alive = self.report, self._alive
        who, seconds = f"rank {self.place.rank} ({self.place.host})", f"{self.report.ends_in:.0f} s"
        if not self.failed:
            return f"{who}: {self.reason}"
        if report.ended:
            return f"{who}: its process lived for {seconds} after the exception, and was ended: {alive}"
        return f"{who}: {self.error}; its process lives, and is ended in {seconds}: {alive}"

    @property
    def reason(self) -> str:
        """The same without the rank, for a job that stands still."""
        return f"its program is over, but its process lives: {self._alive}"

    @property
    def _alive(self) -> str:
        return harmless(", ".join(self.report.alive))

    @property
    def error(self) -> str:
        """`ValueError: boom`."""
        return harmless(self.report.error[-1])[:400] if self.report.error else ""

    def as_failure(self) -> Failure:
        """The exception as the reason of a failed launch."""
        place, tail = self.place, tuple(f"{line}\n" for line in self.report.error)
        return Failure("rank", self.error, 1, host=place.host, rank=place.rank, at=self.at, tail=tail)
