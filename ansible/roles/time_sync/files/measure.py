"""How far a host's clock is from its source: `python3 -` on it with SECONDS to wait, the bound, and HEAD.

HEAD is the host of the cluster that it follows, or empty. chronyd asks it once a minute or so, and
knows nothing since then; so the clock is compared anew, by a chronyd that asks once and sets nothing.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from typing import Any


def tracking() -> list[str]:
    """The fields of `chronyc -c tracking`; none while chronyd does not answer."""
    argv = ["chronyc", "-c", "tracking"]
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.strip().split(",") if done.returncode == 0 else []


def measure() -> dict[str, Any]:
    """The clock against its source: `offset` in seconds, positive if it is ahead."""
    fields = tracking()
    if len(fields) < 14:
        return {"synchronised": False, "offset": 0.0, "distance": 0.0, "source": "chronyd does not answer"}
    offset = -float(fields[4])  # chronyc says how much the clock must be corrected
    return {
        "synchronised": fields[13] != "Not synchronised",
        "offset": offset,
        "distance": abs(offset),
        "source": fields[1] or fields[0] if fields[13] != "Not synchronised" else "no source yet",
    }


def compare(clock: dict[str, Any], head: str) -> dict[str, Any] | None:
    """The clock against the head's at this moment; None where the head does not answer."""
    argv = ["/usr/sbin/chronyd", "-Q", "-t", "3", f"server {head} iburst maxsamples 1"]
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"System clock wrong by (\S+) seconds", done.stdout)
    if not found:
        return None
    offset = -float(found.group(1))  # as above
    return {**clock, "offset": offset, "distance": abs(offset)}


def main() -> None:
    """Print it as JSON: once it is within half the bound, or as it is when the time is over.

    Two hosts that are no further from their source, one ahead and one behind, are within the bound. A head
    that is too busy to answer is asked again: what chronyd knew before may be long past.
    """
    seconds, bound, head = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    deadline = time.monotonic() + seconds
    while True:
        clock = measure()
        now = compare(clock, head) if clock["synchronised"] and head else clock
        clock = now or clock
        is_good = now and now["synchronised"] and now["distance"] <= bound / 2
        if is_good or time.monotonic() >= deadline:
            break
        time.sleep(0.25)
    print(json.dumps(clock))


if __name__ == "__main__":
    main()
