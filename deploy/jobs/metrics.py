"""The metrics of a job that was started again: each attempt has left its own, perhaps on another head."""

from __future__ import annotations

import json


def joined(earlier: str | None, later: str | None) -> str | None:
    """Both, a JSON object a line: what the later attempt did again counts once, as it did it.

    Lines without an epoch cannot be compared: the later attempt's own are kept alone, as they are.
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
