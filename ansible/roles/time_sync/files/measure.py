"""Measures the offset of a host's clock from its source and from the head's clock: `python3 -` runs it there.

Arguments: SECONDS to wait, the bound, HEAD (the first host of the cluster, empty on that host itself), and
`follows` if the head is the host's source.

chronyd's offset from its source is not enough: two hosts with different sources can each be close to their
own source. So this compares the clock with the head's, by a chronyd that asks once and sets nothing. If the
head does not answer, the source's own uncertainty counts.

A host without chrony may have another program that keeps its clock: systemd-timesyncd, linuxptp or ntpd.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from typing import Any

TRIES = 3
TIMESYNCD = ("org.freedesktop.timesync1", "/org/freedesktop/timesync1", "org.freedesktop.timesync1.Manager")
# Does the kernel count its clock as synchronised? Every program that sets a clock reports this to it.
KERNEL = ("timedatectl", "show", "--property=NTPSynchronized", "--value")


def output(*argv: str) -> str:
    """Return what a program printed; "" if there is none, or it failed."""
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def found(source: str, offset: float, margin: float) -> dict[str, Any]:
    """Describe a synchronised clock: `offset` in seconds, positive if ahead, and its error `margin`."""
    return {"synchronised": True, "offset": offset, "margin": margin, "source": source}


def missing(reason: str) -> dict[str, Any]:
    """Describe a clock that no program keeps."""
    return {"synchronised": False, "offset": 0.0, "margin": 0.0, "source": reason}


def measure() -> dict[str, Any]:
    """Compare the clock with its source.

    The margin is root dispersion + half the root delay: the source is at most that far from the true time.
    """
    if shutil.which("chronyc"):
        return of_chrony()
    if output(*KERNEL).strip() != "yes":
        return missing("nothing keeps this clock")
    return of_timesyncd() or of_ptp() or of_ntpd() or missing("an unknown program keeps this clock")


def of_chrony() -> dict[str, Any]:
    """Ask chronyd."""
    fields = output("chronyc", "-c", "tracking").strip().split(",")
    if len(fields) < 14:
        return missing("chronyd does not answer")
    if fields[13] == "Not synchronised":
        return missing("no source yet")
    # chronyc says how much the clock must be corrected
    return found(fields[1] or fields[0], -float(fields[4]), float(fields[11]) + float(fields[10]) / 2)


def of_timesyncd() -> dict[str, Any] | None:
    """Judge by the last answer of systemd-timesyncd's server, as D-Bus has it: all times in microseconds."""
    if output("systemctl", "is-active", "systemd-timesyncd").strip() != "active":
        return None
    try:
        answer = json.loads(output("busctl", "--json=short", "get-property", *TIMESYNCD, "NTPMessage"))[
            "data"
        ]
        leap, _, _, stratum, _, root_delay, dispersion, _, *times, spike, packets, jitter = answer
        sent, received, answered, arrived = times
    except (ValueError, KeyError, TypeError):
        return None
    if leap == 3 or not 0 < stratum < 16 or spike or not packets:
        return None
    ahead = (sent - received + arrived - answered) / 2
    delay = (arrived - sent) - (answered - received)
    return found("systemd-timesyncd", ahead / 1e6, (dispersion + jitter + (root_delay + delay) / 2) / 1e6)


def of_ptp() -> dict[str, Any] | None:
    """Ask ptp4l of linuxptp, in nanoseconds. phc2sys sets the clock, and reports that to the kernel."""
    text = output("pmc", "-u", "-b", "0", "GET TIME_STATUS_NP", "GET CURRENT_DATA_SET")
    values = dict(re.findall(r"^\s+(\w+)\s+(\S+)$", text, re.MULTILINE))
    if values.get("gmPresent") != "true" or "master_offset" not in values:
        return None
    offset, delay = float(values["master_offset"]), float(values.get("meanPathDelay", 0))
    return found(f"PTP {values.get('gmIdentity', '')}".strip(), offset / 1e9, delay / 1e9)


def of_ntpd() -> dict[str, Any] | None:
    """Ask ntpd or ntpsec, in milliseconds."""
    values = dict(re.findall(r"(\w+)=([^,\s]+)", output("ntpq", "-n", "-c", "rv")))
    try:
        behind, delay, dispersion = (float(values[name]) for name in ("offset", "rootdelay", "rootdisp"))
    except (KeyError, ValueError):
        return None
    if values.get("leap") in {"11", "3"} or not 0 < int(values.get("stratum", 16)) < 16:
        return None
    return found(values.get("refid", "ntpd"), -behind / 1e3, (dispersion + delay / 2) / 1e3)


def compare(head: str) -> float | None:
    """Return how far the clock is ahead of the head's now; None if the head does not answer."""
    said = output("/usr/sbin/chronyd", "-Q", "-t", "3", f"server {head} iburst maxsamples 1")
    match = re.search(r"System clock wrong by (\S+) seconds", said)
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
    seconds, bound, head, follows = sys.argv[1:]
    deadline, tries = time.monotonic() + float(seconds), 0
    apart: float | None = None
    while True:
        clock = measure()
        if clock["synchronised"] and head:
            apart, tries = compare(head), tries + 1
        done = is_good(clock, apart, float(bound), tries, is_head=not head, follows=follows == "follows")
        if done or time.monotonic() >= deadline:
            break
        time.sleep(0.25)
    print(json.dumps({**clock, "apart": apart if head else 0.0}))


if __name__ == "__main__":
    main()
