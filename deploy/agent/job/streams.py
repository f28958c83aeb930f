"""Passes connections of the user's machine on to this host: to the debugger of a rank, a port, a socket.

A debugger is reached through the rank's console, a Unix socket in the private folder of the job's agent.
Ports are those of the loopback interface. Nothing listens here.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import socket
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...common.frames import Frame
from ...common.os_errors import explain
from ...common.paths import MusterPaths
from ...common.streams import Stream
from .consoles import SILENT, decoded, is_recorded
from .records import MOST_ANSWER, connect_to

MOST_STREAMS = 256
CONNECT_SECONDS = 5.0
LOAD_SECONDS = 90.0  # a busy rank imports debugpy, and the first time compiles it
LOOPBACK = ("127.0.0.1", "::1")
DEBUGPY = "debugpy"
"""In the private folder of the job's agent: debugpy, if the driver has sent it."""


class Streams:
    """Answers for every job of this host."""

    def __init__(self, home: Path, send: Callable[..., None]) -> None:
        self._paths, self._send = MusterPaths(str(home)), send
        self._streams: dict[int, Stream] = {}

    def close(self) -> None:
        """End every connection."""
        for stream in [*self._streams.values()]:
            stream.close()

    def do_stream_open(self, request: Frame, payload: bytes) -> Frame:
        """Connect; `refused`: why that failed. `here`: whether the job, or the rank of a debugger, runs here.

        `missing`: the rank has no debugpy.
        """
        paths = self._paths.job(request["job"])
        answer = {"recorded": is_recorded(paths), "here": False, "code": paths.code}
        if not (private := self._private(request)):
            return answer
        if len(self._streams) >= MOST_STREAMS:
            return {**answer, "here": True, "refused": f"it has {MOST_STREAMS} connections already"}
        try:
            connection, said = _connect(private, request)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            return {**answer, "here": request["kind"] in {"port", "socket"}, "refused": explain(error)}
        except socket.timeout:  # TimeoutError only from Python 3.10 on
            return {**answer, "here": True, "refused": SILENT}
        if connection:
            self._start(request["stream"], connection)
        return {**answer, "here": True, **said}

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

    def do_debugger(self, request: Frame, payload: bytes) -> Frame:
        """Unpack debugpy for the ranks of a job here, where also a container sees it."""
        if private := self._private(request):
            draft = tempfile.mkdtemp(prefix=DEBUGPY, dir=private)
            with zipfile.ZipFile(io.BytesIO(payload)) as archive:
                archive.extractall(draft)
            try:
                os.rename(draft, os.path.join(private, DEBUGPY))
            except OSError:  # another command was faster
                shutil.rmtree(draft)
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


def _connect(private: str, request: Frame) -> tuple[socket.socket | None, Frame]:
    """The connection, and what the rank has answered."""
    if request["kind"] == "debugger":
        return _debugger(os.path.join(private, f"console-{request['rank']}"), os.path.join(private, DEBUGPY))
    if request["kind"] == "port":
        return _port(request["port"]), {}
    # A relative path is one in the private folder, which is TMPDIR of the ranks; `agent` is the job's agent.
    return connect_to(os.path.join(private, request["path"])), {}


def _debugger(path: str, folder: str) -> tuple[socket.socket | None, Frame]:
    connection = connect_to(path)
    connection.settimeout(LOAD_SECONDS)
    try:
        connection.sendall(json.dumps({"do": "dap", "folder": folder}).encode() + b"\n")
        with connection.makefile("rb") as stream:
            answer = decoded(stream.readline(MOST_ANSWER))
    except OSError:
        connection.close()
        raise
    if answer.get("ready") is True:
        return connection, {}
    connection.close()
    error = str(answer.get("error", "it has closed the connection"))[:1000]
    return None, {"refused": error, "missing": answer.get("missing") is True}


def _port(port: int) -> socket.socket:
    """A connection to a port of the loopback interface."""
    refused: Any = None
    for address in LOOPBACK:
        try:
            return socket.create_connection((address, port), CONNECT_SECONDS)
        except OSError as error:
            refused = refused or error
    raise refused
