"""The frames in which reports of agents arrive, and the check of each against its type."""

from __future__ import annotations

from collections.abc import Mapping

from ..decode import MALFORMED, from_json
from ..wire.frames import Frame
from .reports import KINDS, Report, Sampled

MOST_OUTPUT = 1 << 20  # of a command of `muster run`, in bytes (features/adhoc/on_host/run_command.py)
MOST_PART = 1 << 16  # of a connection, in bytes (features/forward/wire.py)
PAYLOADS: Mapping[str, tuple[str, int]] = {"ran": ("output", MOST_OUTPUT), "stream-part": ("part", MOST_PART)}
"""The reports that bytes may follow: the field for them, and how many there may be."""

BUSY = "busy"
"""Sent by an agent while it works on a request: a sign of life."""
SAMPLE = "sample"
"""Sent by an agent that watches its host. Not in KINDS, because no sample can end a connection."""


def room(frame: Frame) -> int:
    """The bytes that may follow a report."""
    name = frame.get("event")
    return PAYLOADS[name][1] if isinstance(name, str) and name in PAYLOADS else 0


def of_frame(frame: Frame, payload: bytes = b"") -> Report:
    """The report that an agent sent; one of MALFORMED for a protocol error."""
    name = frame.get("event")
    if name == SAMPLE:
        return Sampled.of(frame)
    if not isinstance(name, str) or name not in KINDS:
        raise ValueError(f"an unknown report {str(name)[:40]!r}")
    try:
        raw = {PAYLOADS[name][0]: payload} if name in PAYLOADS else {}
        report: Report = from_json(KINDS[name], {**frame, **raw})
    except MALFORMED as error:
        raise ValueError(f"the report {name}: {error}") from None
    return report
