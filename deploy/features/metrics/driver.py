"""The metrics of a job. Each attempt of a job that was restarted leaves its own, perhaps on another head."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from ...core.errors import MusterError
from ...core.job.bounded import value_of
from ...core.job.events import Stage
from ...core.job.feature import Attempt, Feature
from ...core.job.fetch_output import ALL_SECONDS, MOST_BYTES, fetched
from ...core.job.result import LaunchResult
from ...core.wire.paths import JobPaths

KEYS = {"metrics.jsonl": "epoch", "steps.jsonl": "step"}
"""The key that numbers the lines of each file."""


class Metrics(Feature):
    """Keeps the files of metrics, each of all attempts together."""

    def __init__(self, *, shared_home: bool) -> None:
        """`shared_home`: whether the hosts may share a home with this machine."""
        self._shared_home = shared_home
        self._texts: dict[str, str | None] = {}
        self._unfetched: dict[tuple[str, str], list[str]] = {}
        """The files that could not be fetched, by head and its folder."""

    def begins(self, attempt: Attempt) -> None:
        """An earlier driver of the job may have kept its own."""
        self._folder = attempt.folder
        self._texts = self._texts or {name: self._folder.kept(name) for name in KEYS}

    def fetch(self, attempt: Attempt) -> None:
        """Fetch the files of an attempt from the job's folder on its head."""
        attempt.emit(Stage("fetching the metrics"))
        head, out = attempt.head, JobPaths(attempt.plan.hosts[0].folder).out
        lacking = self._unfetched[head.host, out] = [*KEYS]  # an interrupt may come
        sizes, deadline = dict[str, int](), time.monotonic() + ALL_SECONDS
        for name, key in KEYS.items():
            try:
                content = fetched(head, f"{out}/{name}", deadline - time.monotonic())
            except MusterError:
                path = Path(out, name)
                if not (self._shared_home and path.parent.is_dir()):
                    continue
                content = path.open("rb").read(MOST_BYTES + 1) if path.is_file() else b""
            whole = content.rfind(b"\n", 0, MOST_BYTES) + 1
            lines = content if len(content) <= MOST_BYTES else content[:whole]
            self._texts[name] = text = joined(self._texts[name], lines.decode(errors="replace") or None, key)
            if text is not None:
                self._folder.keep(name, text)
            if lines == content:
                lacking.remove(name)
                sizes[f"out/{name}"] = len(content)
        if not self._folder.problem:
            self._folder.record_on(head, f"../fetched.metrics.{head.host}.json", sizes)

    def over(self, result: LaunchResult) -> LaunchResult:
        """Note which files are missing or incomplete on this machine, and where the rest is."""
        lines = [*result.notes]
        for (head, out), names in self._unfetched.items():
            if partial := [name for name in names if self._texts[name] is not None]:
                verb = "is" if len(partial) == 1 else "are"
                rest = f"the rest is in {out} on {head}; muster get {Path(out).parent.name} fetches it"
                lines.append(f"{' and '.join(partial)} {verb} incomplete: {rest}")
            if missing := [name for name in names if self._texts[name] is None]:
                why = "could not be fetched; if the program wrote"
                it = "it, it is" if len(missing) == 1 else "them, they are"
                lines.append(f"{' and '.join(missing)} {why} {it} in {out} on {head}")
        return dataclasses.replace(result, notes=(*lines,))


def joined(earlier: str | None, later: str | None, key: str = "epoch") -> str | None:
    """Both metrics, a JSON object a line. Of an epoch that both attempts trained, the later line is kept.

    `key`: the field that numbers the lines. If no line of the later attempt has it, as when that failed after
    its first lines, all lines of both are kept.
    """
    if earlier is None or later is None:
        return earlier if later is None else later
    numbers = [number for line in later.splitlines() if (number := _number(line, key)) is not None]
    if not numbers:
        return later if later.startswith(earlier) else earlier + later
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
