"""Requests and reports for connections to a port or a socket of a host."""

from __future__ import annotations

from ...core.connect.reports import Report
from ...core.connect.requests.request import Nothing, Request
from ...core.decode import lazy_dataclass
from ...core.hosts.bounds import Count, Text
from .wire import CHUNK_BYTES


@lazy_dataclass(frozen=True)
class StreamOpened:
    """`refused`: why there is no connection."""

    refused: Text = ""


@lazy_dataclass(frozen=True)
class StreamPart(Report, event="stream-part", payload="part", room=CHUNK_BYTES):
    """A part of a connection that is passed on (features/forward/command.py); an empty one is the last."""

    stream: Count
    part: bytes = b""


@lazy_dataclass(frozen=True)
class StreamTaken(Report, event="stream-taken"):
    """The host has written a part of a connection."""

    stream: Count


@lazy_dataclass(frozen=True)
class StreamClosed(Report, event="stream-closed"):
    """A connection on the host takes no more."""

    stream: Count


STREAM_OPEN = Request("stream_open", StreamOpened)
STREAM_PART = Request("stream_part", Nothing)
STREAM_TAKEN = Request("stream_taken", Nothing)
STREAM_CLOSE = Request("stream_close", Nothing)
