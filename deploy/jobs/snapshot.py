"""Brings what a page shows of a run that still goes on elsewhere: its records, and the ends of its logs."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ..common.rank_logs import RankLog
from ..connect.requests.jobs import READ
from ..errors import MusterError
from .control import CHUNK, Known, listed
from .metrics import METRICS

END_OF_LOG = 1 << 14
MOST_RECORD = 1 << 28


def snapshot(known: Known, folder: Path) -> None:
    """Write the records of a run into a folder. `MusterError` if its host says what cannot be."""
    for path, size in listed(known):
        if path.parts[0] == "logs":
            if RankLog.of_name(path.name):
                _bring(known, str(path), folder / path, max(0, size - END_OF_LOG))
        elif size <= MOST_RECORD:
            _bring(known, str(path), folder / path, 0)
    for name in METRICS:  # the driver brings them at the end; until then they are with the program
        with contextlib.suppress(MusterError):
            _bring(known, f"../out/{name}", folder / name, 0)


def _bring(known: Known, name: str, path: Path, start: int) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = bytearray()
    while len(content) < MOST_RECORD:
        place = start + len(content)
        payload = known.place.ask(READ, job=known.state.job, name=name, start=place, most=CHUNK).payload
        content += payload
        if len(payload) < CHUNK:
            break
    path.write_bytes(content)
