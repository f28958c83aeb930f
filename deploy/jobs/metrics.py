"""Joins the metrics of a job that was restarted: each attempt leaves its own, perhaps on another head."""

from __future__ import annotations

import json

METRICS = {"metrics.jsonl": "epoch", "steps.jsonl": "step"}
"""The files of metrics that a run keeps, and what numbers the lines of each."""


def joined(earlier: str | None, later: str | None, key: str = "epoch") -> str | None:
    """Both metrics, a JSON object a line. Of an epoch that both attempts trained, the later line is kept.

    `key`: what numbers the lines. Lines without it cannot be compared: if the later attempt has only such
    lines, only they are kept.
    """
    if earlier is None or later is None:
        return earlier if later is None else later
    numbers = [number for line in later.splitlines() if (number := _number(line, key)) is not None]
    if not numbers:
        return later
    first = min(numbers)
    kept = [
        line for line in earlier.splitlines() if (number := _number(line, key)) is not None and number < first
    ]
    return "".join(f"{line}\n" for line in kept) + later


def _number(line: str, key: str) -> int | None:
    try:
        number = json.loads(line)[key]
    except (KeyError, TypeError, ValueError):
        return None
    return number if type(number) is int else None
