"""The flags about stalls and their explanation."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...core.errors import UsageError
from ...core.plan.flags import Options, flag

STALL_NOTE_SECONDS = 60.0


def _stall_note() -> float:
    """The least seconds without progress that a launch notes."""
    text = os.environ.get("MUSTER_STALL_NOTE", f"{STALL_NOTE_SECONDS:.0f}")
    if not re.fullmatch(r"[0-9]{1,7}", text):
        raise UsageError(f"MUSTER_STALL_NOTE={text}: write seconds as a whole number, or 0 for no note")
    return float(text)


@dataclass(frozen=True)
class WhyOptions(Options):
    """What a job records of its ranks, and what happens if they stall."""

    stall_timeout: int = flag(
        0,
        "end the job if no rank makes progress for this many seconds (default: 0, never)",
        "SECONDS",
        least=0,
        group="Most used",
    )
    no_record: bool = flag(
        False,
        "record no collectives and open no console in the ranks; then muster why has only their stacks, "
        "and eval does not work",
        group="Look at it",
    )
    stall_note: float = field(default_factory=_stall_note)
    """The least seconds without progress that are noted; 0 for no note."""

    @property
    def record(self) -> bool:
        """Whether each rank records its collectives, so that a hang can be explained."""
        return not self.no_record

    @property
    def recorded(self) -> Mapping[str, object]:
        """See `Options.recorded`."""
        return {"stall-timeout": float(self.stall_timeout)}
