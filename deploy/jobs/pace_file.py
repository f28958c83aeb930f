"""The file of a run's pace, `pace.jsonl`: how long the steps of each rank took, and who was late."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..why.lateness import Pace, RankPace
from ..why.stragglers import Straggler

NAME = "pace.jsonl"
MOST_RANKS = 256
"""Of more ranks, a line has those that work longest on a step."""


def line(at: float, attempt: int, pace: Pace, late: Sequence[Straggler]) -> str:
    """A look at a running attempt as a line, with its newline. Times in seconds."""
    ranks = sorted(sorted(pace.ranks, key=lambda rank: -rank.own)[:MOST_RANKS], key=lambda rank: rank.rank)
    record = {
        "at": round(at, 3),
        "attempt": attempt,
        "group": pace.group,
        "steps": pace.steps,
        "step_seconds": round(pace.step_seconds, 6),
        "regular": pace.regular,
        "ranks": [_rank(rank) for rank in ranks],
        "late": [one.as_json() for one in late],
    }
    return json.dumps(record, separators=(",", ":")) + "\n"


def _rank(rank: RankPace) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "own_seconds": round(rank.own, 6),
        "late_seconds": round(rank.late, 6),
        "late": rank.is_late,
    }
