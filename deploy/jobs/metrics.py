"""The metrics of a job. Each attempt of a job that was restarted leaves its own, perhaps on another head."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..common.paths import JobPaths
from ..connect.channel import Channel
from ..connect.requests.launch import FETCH, FETCHED, PING
from ..errors import MusterError
from .bounded import value_of

METRICS = {"metrics.jsonl": "epoch", "steps.jsonl": "step"}
"""The files of metrics that a run keeps, and the key that numbers the lines of each."""
MOST_METRICS = 1 << 26  # bytes of a file
# Time limits for one part, and for all parts together. Files not fetched by then are named in the verdict.
# The head's agent ends itself after 12 s without a ping (deploy/agent/job/attempt.py), and the driver
# sends none while it waits for a part.
PART_SECONDS, METRICS_SECONDS = 10.0, 300.0
# A slow link delivers a small part in time; large parts need fewer round trips.
LEAST_PART, QUICK_SECONDS = 1 << 16, 2.0


class Metrics:
    """The text of each file of METRICS, of all attempts so far. `kept`: gives that of an earlier driver."""

    def __init__(self, kept: Callable[[str], str | None]) -> None:
        self._texts = {name: kept(name) for name in METRICS}
        self._unfetched: dict[tuple[str, str], list[str]] = {}
        """The files that could not be fetched, by head and its folder."""

    @property
    def texts(self) -> dict[str, str]:
        """The texts of the files that exist."""
        return {name: text for name, text in self._texts.items() if text is not None}

    def fetch(self, head: Channel, folder: str) -> None:
        """Fetch the files of an attempt from the job's folder on its head."""
        lacking = self._unfetched[head.host, JobPaths(folder).out] = [*METRICS]  # an interrupt may come
        deadline = time.monotonic() + METRICS_SECONDS
        for name, key in METRICS.items():
            try:
                text = fetched(head, name, deadline - time.monotonic()).decode(errors="replace") or None
            except MusterError:
                continue
            self._texts[name] = joined(self._texts[name], text, key)
            lacking.remove(name)

    def missing(self) -> list[str]:
        """Notes about files that are missing or incomplete on this machine, with the location of the rest."""
        lines = []
        for (head, out), names in self._unfetched.items():
            if partial := [name for name in names if name in self.texts]:
                verb = "is" if len(partial) == 1 else "are"
                rest = f"the rest could not be fetched from {head}, where it is in {out}"
                lines.append(f"{' and '.join(partial)} {verb} incomplete: {rest}")
            if missing := [name for name in names if name not in self.texts]:
                why = "could not be fetched; if the program wrote"
                it = "it, it is" if len(missing) == 1 else "them, they are"
                lines.append(f"{' and '.join(missing)} {why} {it} in {out} on {head}")
        return lines


def fetched(head: Channel, name: str, seconds: float, largest: int = MOST_METRICS) -> bytes:
    """A file in $MUSTER_OUT of a host, within these seconds; of a larger one only its begin."""
    content, most = bytearray(), LEAST_PART
    deadline = time.monotonic() + seconds
    while len(content) < largest:
        head.post(PING, pulse=False)
        began = time.monotonic()
        seconds = min(PART_SECONDS, deadline - began)
        if seconds <= 0:
            raise MusterError(f"more than {METRICS_SECONDS:.0f} s", host=head.host)
        start = len(content)
        part = head.ask(FETCH, path=f"out/{name}", start=start, most=most, seconds=seconds).payload
        content += part
        if len(part) < most:
            break
        quick = time.monotonic() - began < QUICK_SECONDS
        most = min(2 * most, FETCHED) if quick else max(most // 2, LEAST_PART)
    return bytes(content)


def joined(earlier: str | None, later: str | None, key: str = "epoch") -> str | None:
    """Both metrics, a JSON object a line. Of an epoch that both attempts trained, the later line is kept.

    `key`: the field that numbers the lines. If no line of the later attempt has it, only the later attempt is
    kept.
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
        number = value_of(line.encode(errors="replace"))[key]
    except (LookupError, TypeError, ValueError, RecursionError):
        return None
    return number if type(number) is int else None
