"""Requests to pass connections on to a host: to the debugger of a rank, a port, a socket."""

from __future__ import annotations

from ...decode import message
from ...hosts.bounds import Path, Text
from .request import Nothing, Request


@message(frozen=True)
class StreamOpened:
    """Whether the job, and the rank of a debugger, is on this host; `refused`: why there is no connection.

    `recorded`: whether its ranks have consoles. `missing`: the rank has no debugpy. `code`: its files.
    """

    recorded: bool
    here: bool
    code: Path
    refused: Text = ""
    missing: bool = False


STREAM_OPEN = Request("stream_open", StreamOpened)
STREAM_PART = Request("stream_part", Nothing)
STREAM_TAKEN = Request("stream_taken", Nothing)
STREAM_CLOSE = Request("stream_close", Nothing)
DEBUGGER = Request("debugger", Nothing)
