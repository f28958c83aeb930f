"""Joins the metrics of a job that was restarted: each attempt leaves its own, perhaps on another head."""

from __future__ import annotations

import json


def joined(earlier: str | None, later: str | None) -> str | None:
    """Both metrics, a JSON object a line. Of an epoch that both attempts trained, the later line is kept.

    Lines without an epoch cannot be compared: if the later attempt has only such lines, only they are kept.
    """
    if earlier is None or later is None:
        return earlier if later is None else later
    first = min((epoch for line in later.splitlines() if (epoch := _epoch(line)) is not None), default=None)
    if first is None:
        return later
    kept = [line for line in earlier.splitlines() if (epoch := _epoch(line)) is not None and epoch < first]
    return "".join(f"{line}\n" for line in kept) + later


def _epoch(line: str) -> int | None:
    try:
        epoch = json.loads(line)["epoch"]
    except (KeyError, TypeError, ValueError):
        return None
    return epoch if type(epoch) is int else None
