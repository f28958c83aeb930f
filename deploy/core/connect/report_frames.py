"""The frames in which reports of agents arrive, and the check of each against its type."""

from __future__ import annotations

from ..decode import MALFORMED
from ..wire.frames import Frame
from .reports import KINDS, PAYLOADS, Report

BUSY = "busy"
"""Sent by an agent while it works on a request: a sign of life."""


def room(frame: Frame) -> int:
    """The bytes that may follow a report."""
    name = frame.get("event")
    return PAYLOADS[name][1] if isinstance(name, str) and name in PAYLOADS else 0


def of_frame(frame: Frame, payload: bytes = b"") -> Report:
    """The report that an agent sent; ValueError for a protocol error."""
    name = frame.get("event")
    if not isinstance(name, str) or name not in KINDS:
        raise ValueError(f"an unknown report {str(name)[:40]!r}")
    try:
        raw = {PAYLOADS[name][0]: payload} if name in PAYLOADS else {}
        return KINDS[name].of({**frame, **raw})
    except MALFORMED as error:
        raise ValueError(f"the report {name}: {error}") from None
