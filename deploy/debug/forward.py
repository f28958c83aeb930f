"""Passes connections to a port of this machine on to a host, through its agent. No other machine connects."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from ..common.os_errors import explain
from ..common.streams import Stream
from ..connect.channel import Channel
from ..connect.inbox import Inbox
from ..connect.listener import Listener
from ..connect.pipe import why_lost
from ..connect.reports import Lost, StreamClosed, StreamPart, StreamTaken
from ..connect.requests.consoles import STREAM_CLOSE, STREAM_OPEN, STREAM_PART, STREAM_TAKEN, StreamOpened
from ..errors import MusterError, UnfitError, UsageError
from .peers import other_user

LOOPBACK = "127.0.0.1"
OPEN_SECONDS = 100.0  # an agent waits 90 s for a rank that imports debugpy
HEAR_SECONDS = 1.0
FIRST_SECONDS = 10.0
LAST_SECONDS = 2.0  # for the last words of a rank that has ended
WATCH = 0
"""The stream that ends with the rank, or with the job on its host. Nothing is sent on it."""


class Target(NamedTuple):
    """Where connections end: `debugger` of a rank, a `port` of a host, or a `socket` there."""

    job: str
    host: str
    rank: int
    kind: str
    port: int = 0
    path: str = ""

    @property
    def where(self) -> str:
        """It in words: `port 6006 of node2`."""
        if self.kind == "debugger":
            return f"rank {self.rank} on {self.host}"
        return f"port {self.port} of {self.host}" if self.port else f"{self.path} on {self.host}"

    @property
    def begins(self) -> bytes:
        """How every connection begins.

        A page in a browser can send a request of HTTP to any port here, and debugpy would obey one.
        """
        return b"Content-" if self.kind == "debugger" else b""

    @property
    def watched(self) -> Target:
        """The target of the stream that is watched: a rank's debugger, else the job's agent."""
        return self if self.kind == "debugger" else self._replace(kind="socket", path="agent")


def listen(port: int) -> socket.socket:
    """Listen at a port of the loopback interface, 0 for any; `UsageError` if that is not possible."""
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        free = "; --port 0 takes a free one, --port N another" if port else ""
        raise UsageError(f"port {port} of {LOOPBACK} on this machine: {explain(error)}{free}") from None


class Forwarder:
    """Passes connections on until the target is gone. `note`: takes a line about a connection."""

    def __init__(self, channel: Channel, target: Target, note: Callable[[str], object]) -> None:
        self._channel, self._target, self._note = channel, target, note
        self._listener = Listener(Inbox(), {channel.host: channel})
        self._numbers, self._streams = itertools.count(WATCH + 1), dict[int, Stream]()
        self._is_over, self._noted = False, ""
        channel.report_to(self._listener.events)

    def watch(self) -> StreamOpened:
        """Connect to what is watched; the answer says whether the target is there."""
        return self._ask(WATCH, self._target.watched)

    def run(self, listening: socket.socket) -> None:
        """Serve until the target is gone; `UnfitError` if its host is lost."""
        threading.Thread(target=self._accept, args=(listening,), daemon=True).start()
        while not self._is_over:
            self._hear(HEAR_SECONDS)
        last = time.monotonic() + LAST_SECONDS
        while self._streams and time.monotonic() < last:
            self._hear(last - time.monotonic())

    def close(self) -> None:
        """End every connection."""
        for stream in [*self._streams.values()]:
            stream.close()

    def _hear(self, seconds: float) -> None:
        event = self._listener.hear(seconds)
        if not event:
            return
        report = event.report
        if isinstance(report, Lost):
            raise UnfitError([(event.host, why_lost(report.reason))])
        if not isinstance(report, StreamPart | StreamTaken | StreamClosed):
            return
        if report.stream == WATCH:
            self._is_over = True
        elif stream := self._streams.get(report.stream):  # else it is over here
            self._pass_on(report, stream)

    def _pass_on(self, report: StreamPart | StreamTaken | StreamClosed, stream: Stream) -> None:
        if isinstance(report, StreamTaken):
            stream.acknowledge()
        elif isinstance(report, StreamClosed):
            stream.close()
        else:
            try:
                stream.put(report.part)
            except ValueError as error:
                raise UnfitError([(self._channel.host, f"protocol error: {error}")]) from None

    # -- connections of this machine --

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, peer = listening.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(connection, peer), daemon=True).start()

    def _serve(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        try:
            why = self._refusal(connection, peer) or self._connect(connection)
        except (MusterError, OSError) as error:
            why = str(error)
        if why:
            connection.close()
            self._note_once(f"a connection was refused: {why}")

    def _refusal(self, connection: socket.socket, peer: tuple[str, int]) -> str:
        """Why a connection is not accepted; empty if it is."""
        if user := other_user(connection, peer):
            return f"it is from {user}"
        if begins := self._target.begins:
            connection.settimeout(FIRST_SECONDS)
            first = connection.recv(len(begins), socket.MSG_PEEK)
            connection.settimeout(None)
            if first != begins:
                return "an editor begins otherwise; it is not the Debug Adapter Protocol"
        return ""

    def _connect(self, connection: socket.socket) -> str:
        """Connect to the target; returns why that fails."""
        number, channel, is_debugger = next(self._numbers), self._channel, self._target.kind == "debugger"

        def ended() -> None:
            self._streams.pop(number, None)
            if is_debugger:
                self._note("the editor has left")

        self._streams[number] = stream = Stream(
            connection,
            pass_on=lambda part: channel.post(STREAM_PART, part, stream=number),
            taken=lambda: channel.post(STREAM_TAKEN, stream=number),
            broken=lambda: channel.post(STREAM_CLOSE, stream=number),
            over=ended,
        )
        opened = self._ask(number, self._target)
        if opened.refused or not opened.here:
            del self._streams[number]
            return f"{self._target.where}: {opened.refused or 'the job has ended there'}"
        if is_debugger:
            self._note(f"an editor is attached to rank {self._target.rank}")
        stream.start()
        return ""

    def _ask(self, number: int, target: Target) -> StreamOpened:
        return self._channel.ask(STREAM_OPEN, seconds=OPEN_SECONDS, stream=number, **target._asdict())

    def _note_once(self, line: str) -> None:
        """Pass a line on, unless it repeats the last one: a browser tries again and again."""
        if line != self._noted:
            self._noted = line
            self._note(line)
