"""Passes connections of the user's machine on to a port or a Unix socket of this host.

Ports are those of the loopback interface. Nothing listens here.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...core.agent.ranks import connect_to
from ...core.wire.frames import Frame
from ...core.wire.os_errors import explain
from ...core.wire.paths import MusterPaths
from .wire import Stream

MOST_STREAMS = 256
CONNECT_SECONDS = 5.0
LOOPBACK = ("127.0.0.1", "::1")


class Streams:
    """Answers for every job of this host."""

    def __init__(self, muster_root: Path, send: Callable[..., None]) -> None:
        self._paths, self._send = MusterPaths(str(muster_root)), send
        self._streams: dict[int, Stream] = {}

    def close(self) -> None:
        """End every connection."""
        for stream in [*self._streams.values()]:
            stream.close()

    def do_stream_open(self, request: Frame, payload: bytes) -> Frame:
        """Connect; `refused`: why that failed."""
        if not (private := self._private(request)):
            return {"refused": "the job has ended there"}
        if len(self._streams) >= MOST_STREAMS:
            return {"refused": f"it has {MOST_STREAMS} connections already"}
        try:
            self._start(request["stream"], _connect(private, request["port"], request["path"]))
        except OSError as error:  # a time-out is one too
            return {"refused": explain(error)}
        return {}

    def do_stream_part(self, request: Frame, payload: bytes) -> Frame:
        """Write a part to a connection; an empty part is the end."""
        if stream := self._streams.get(request["stream"]):
            stream.put(payload)
        return {}

    def do_stream_taken(self, request: Frame, payload: bytes) -> Frame:
        """The driver has written a part."""
        if stream := self._streams.get(request["stream"]):
            stream.acknowledge()
        return {}

    def do_stream_close(self, request: Frame, payload: bytes) -> Frame:
        """End a connection."""
        if stream := self._streams.get(request["stream"]):
            stream.close()
        return {}

    def _private(self, request: Frame) -> str:
        """The private folder of the job's agent; empty if the job does not run here."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            private = Path(self._paths.job(request["job"]).agent(request["host"])).read_text()
            return private if os.path.isdir(private) else ""
        return ""

    def _start(self, number: int, connection: socket.socket) -> None:
        connection.settimeout(None)

        def tell(event: str, part: bytes = b"") -> None:
            self._send({"event": event, "stream": number}, part)

        self._streams[number] = Stream(
            connection,
            pass_on=lambda part: tell("stream-part", part),
            taken=lambda: tell("stream-taken"),
            broken=lambda: tell("stream-closed"),
            over=lambda: self._streams.pop(number, None),
        )
        self._streams[number].start()


def _connect(private: str, port: int, path: str) -> socket.socket:
    """A connection to a port of the loopback interface; to a socket if the port is 0.

    A relative path is one in the private folder, which is TMPDIR of the ranks; `agent` is the job's agent.
    """
    if not port:
        return connect_to(os.path.join(private, path))
    refused: Any = None
    for address in LOOPBACK:
        try:
            return socket.create_connection((address, port), CONNECT_SECONDS)
        except OSError as error:
            refused = refused or error
    raise refused
