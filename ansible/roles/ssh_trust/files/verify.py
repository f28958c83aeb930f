"""Tries logins at the same time: `python3 -` runs it on a host, with a list of trials as JSON.

Each trial has the `id` of its check, an `argv`, and the `refusal` that has to be in ssh's last line; an empty
one if the login has to work.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

AT_ONCE = 16


def problem(trial: dict[str, Any]) -> str:
    """Return what is wrong with the outcome of a trial; "" if nothing is."""
    done = subprocess.run(
        trial["argv"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    status, message = done.returncode, done.stderr.strip().rpartition("\n")[2]
    if not trial["refusal"]:
        return f"{trial['name']}: {message or f'status {status}'}" if status else ""
    is_refused = status == 255 and trial["refusal"] in message
    return "" if is_refused else f"{trial['name']}: status {status}: {message or 'let in'}"


def main() -> None:
    """Print the outcome of each check as JSON."""
    trials = json.loads(sys.argv[1])
    problems: dict[str, list[str]] = {trial["id"]: [] for trial in trials}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for trial, found in zip(trials, pool.map(problem, trials)):  # 3.9
            problems[trial["id"]] += [found] if found else []
    print(
        json.dumps(
            [{"id": name, "ok": not each, "detail": "; ".join(each)} for name, each in problems.items()]
        )
    )


if __name__ == "__main__":
    main()
