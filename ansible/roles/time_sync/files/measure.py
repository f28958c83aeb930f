"""Measures the offset of a host's clock from its source and from the head's clock: `python3 -` runs it there.

Arguments: SECONDS to wait, the bound, HEAD (the first host of the cluster, empty on that host itself), and
`follows` if the head is the host's source.

chronyd's offset from its source is not enough: two hosts with different sources can each be close to their
own source. So this compares the clock with the head's, by a chronyd that asks once and sets nothing. If the
head does not answer, the source's own uncertainty counts.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from typing import Any

TRIES = 3


def tracking() -> list[str]:
    """Return the fields of `chronyc -c tracking`; an empty list while chronyd does not answer."""
    argv = ["chronyc", "-c", "tracking"]
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.strip().split(",") if done.returncode == 0 else []


def measure() -> dict[str, Any]:
    """Compare the clock with its source: `offset` in seconds, positive if ahead, and its error `margin`.

    The margin is root dispersion + half the root delay: the source is at most that far from the true time.
    """
    fields = tracking()
    if len(fields) < 14:
        return {"synchronised": False, "offset": 0.0, "margin": 0.0, "source": "chronyd does not answer"}
    synchronised = fields[13] != "Not synchronised"
    return {
        "synchronised": synchronised,
        "offset": -float(fields[4]),  # chronyc says how much the clock must be corrected
        "margin": float(fields[11]) + float(fields[10]) / 2 if synchronised else 0.0,
        "source": fields[1] or fields[0] if synchronised else "no source yet",
    }


def compare(head: str) -> float | None:
    """Return how far the clock is ahead of the head's now; None if the head does not answer."""
    argv = ["/usr/sbin/chronyd", "-Q", "-t", "3", f"server {head} iburst maxsamples 1"]
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"System clock wrong by (\S+) seconds", done.stdout)
    return -float(match.group(1)) if match else None  # as above


def is_good(
    clock: dict[str, Any], apart: float | None, bound: float, tries: int, *, is_head: bool, follows: bool
) -> bool:
    """Whether waiting can end. A host that follows the head needs its answer; others try 3 times."""
    if not clock["synchronised"]:
        return False
    if is_head:
        return bool(abs(clock["offset"]) <= bound / 2)
    if apart is not None:
        return abs(apart) <= bound / 2
    return not follows and tries >= TRIES and bool(abs(clock["offset"]) + clock["margin"] <= bound / 2)


def main() -> None:
    """Print the measurement as JSON once the offset is within half the bound, or when the time is over.

    Two hosts within half the bound of the head, one ahead and one behind, are within the bound of each other.
    If the head is too busy to answer, it is asked again.
    """
    seconds, bound, head, follows = (
        float(sys.argv[1]),
        float(sys.argv[2]),
        sys.argv[3],
        sys.argv[4] == "follows",
    )
    deadline = time.monotonic() + seconds
    apart: float | None = None
    tries = 0
    while True:
        clock = measure()
        if clock["synchronised"] and head:
            apart, tries = compare(head), tries + 1
        done = is_good(clock, apart, bound, tries, is_head=not head, follows=follows)
        if done or time.monotonic() >= deadline:
            break
        time.sleep(0.25)
    print(json.dumps({**clock, "apart": apart if head else 0.0}))


if __name__ == "__main__":
    main()
