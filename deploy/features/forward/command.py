"""`muster forward`."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...cli.running_job import exit_if_silent, running
from ...cli.shared import RunningJobOptions, print_note, require_rank
from ...core.connect.channel import Channel
from ...core.connect.inbox import Inbox
from ...core.connect.listener import Listener
from ...core.connect.pipe import why_lost
from ...core.connect.reports import Lost, Report
from ...core.connect.requests import Nothing, Request
from ...core.decode import lazy_dataclass
from ...core.errors import MusterError, UnfitError, UsageError
from ...core.hosts.bounds import Count, Text
from ...core.plan.flags import flag
from ...core.text.progress import Progress
from ...core.text.terminal import harmless_lines
from ...core.wire.os_errors import explain
from ...core.wire.users import name_of
from .wire import CHUNK_BYTES, Stream


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


TABLE = Path("/proc/net/tcp")
ROOT = 0
GONE = "a program that has ended already"


def can_tell() -> bool:
    """Whether this machine names the users of connections: Linux does."""
    return TABLE.exists()


def other_user(connection: socket.socket, peer: tuple[str, int]) -> str:
    """Another user at the other end; empty for this user and root, and where no table has users."""
    if not can_tell():
        return ""
    user = owner(TABLE.read_text(), peer, connection.getsockname())
    if user is None:
        return GONE
    return "" if user in {os.getuid(), ROOT} else f"another user of this machine, {name_of(user)}"


def owner(table: str, local: tuple[str, int], remote: tuple[str, int]) -> int | None:
    """The user who has this connection, by /proc/net/tcp (proc(5)); None if no process has it."""
    wanted = [_encoded(*local), _encoded(*remote)]
    for line in table.splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == wanted:
            # A socket that no process has any more counts as root's, and has no inode.
            return int(fields[7]) if int(fields[9]) else None
    return None


def _encoded(address: str, port: int) -> str:
    """An address as in the table: the number of its bytes as this processor reads it."""
    number = int.from_bytes(socket.inet_aton(address), sys.byteorder)
    return f"{number:08X}:{port:04X}"


LOOPBACK = "127.0.0.1"
OPEN_SECONDS = 20.0
HEAR_SECONDS = 1.0
LAST_SECONDS = 2.0  # for the last output of a program that has ended
WATCH = 0
"""The stream to the job's agent, which ends with the job on that host. Nothing is sent on it."""


class Target(NamedTuple):
    """Where connections end: a `port` of a host, or a socket at `path` there."""

    job: str
    host: str
    port: int = 0
    path: str = ""

    @property
    def where(self) -> str:
        """It in words: `port 6006 of node2`."""
        return f"port {self.port} of {self.host}" if self.port else f"{self.path} on {self.host}"


def listen(port: int) -> socket.socket:
    """Listen at a port of the loopback interface, 0 for any; `UsageError` if that is not possible."""
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        free = "; --port 0 takes a free one, --port N another" if port else ""
        raise UsageError(f"port {port} of {LOOPBACK} on this machine: {explain(error)}{free}") from None


class Forwarder:
    """Passes connections on until the job ends. `note`: takes a line about a connection."""

    def __init__(self, channel: Channel, target: Target, note: Callable[[str], object]) -> None:
        self._channel, self._target, self._note = channel, target, note
        self._listener = Listener(Inbox(), {channel.host: channel})
        self._numbers, self._streams = itertools.count(WATCH + 1), dict[int, Stream]()
        self._is_over, self._noted = False, ""
        channel.report_to(self._listener.events)

    def watch(self) -> StreamOpened:
        """Connect to the job's agent; it refuses if the job does not run there."""
        return self._ask(WATCH, Target(self._target.job, self._target.host, path="agent"))

    def run(self, listening: socket.socket) -> None:
        """Serve until the job ends; `UnfitError` if its host is lost."""
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
            user = other_user(connection, peer)
            why = f"it is from {user}" if user else self._connect(connection)
        except (MusterError, OSError) as error:
            why = str(error)
        if why:
            self._note_once(f"a connection was refused: {why}")  # first: a client may end this command then
            connection.close()

    def _connect(self, connection: socket.socket) -> str:
        """Connect to the target; returns why that fails."""
        number, channel = next(self._numbers), self._channel
        self._streams[number] = stream = Stream(
            connection,
            pass_on=lambda part: channel.post(STREAM_PART, part, stream=number),
            taken=lambda: channel.post(STREAM_TAKEN, stream=number),
            broken=lambda: channel.post(STREAM_CLOSE, stream=number),
            over=lambda: self._streams.pop(number, None),
        )
        opened = self._ask(number, self._target)
        if opened.refused:
            del self._streams[number]
            return f"{self._target.where}: {opened.refused}"
        stream.start()
        return ""

    def _ask(self, number: int, target: Target) -> StreamOpened:
        return self._channel.ask(STREAM_OPEN, seconds=OPEN_SECONDS, stream=number, **target._asdict())

    def _note_once(self, line: str) -> None:
        """Pass a line on, unless it repeats the last one: a browser tries again and again."""
        if line != self._noted:
            self._noted = line
            self._note(line)


MOST_PORT = 65535
OPEN_TO_ALL = (
    "note: every user of this machine can connect to this port: Muster can distinguish users only on Linux"
)
LISTENS = "{job}: {here} of this machine is {there}; Ctrl-C ends this, and the job continues\n"


@dataclass(frozen=True)
class Forward(RunningJobOptions):
    """Connect a port of this machine to a port of a rank's host: TensorBoard, Jupyter.

    The program there needs to listen on the host's loopback interface alone, or on a Unix socket: connections
    come over the SSH connection of Muster. The port here accepts connections of this user alone.

    muster forward JOB 6006
    muster forward JOB jupyter.sock --rank 3
    """

    interrupted = "ended; the job continues"
    hints = {  # noqa: RUF012
        "-L": "the host's port, then the port here: forward JOB 6006 --port 16007",
        "-p": "the host's port stands alone: forward JOB 6006",
    }

    to: str = flag(
        "",
        "a port of the host, or the path of a Unix socket there (relative to TMPDIR of the ranks)",
        takes="positional",
        required="which port?",
    )
    rank: int = flag(0, "the rank on whose host it is (default: 0)", "RANK", least=0)
    port: str = flag("", "the port here, 0 for any free one (default: that of the host)", "PORT")

    def run(self) -> None:
        """Pass connections on until the job ends, or the user ends the command."""
        there, here = number_of(self.to), number_of(self.port)
        *others, last = self.to.split(":")
        if others and last.isdecimal() and "/" not in self.to:  # as `ssh -L` and kubectl write it
            mine = "".join(f" --port {each}" for each in [*filter(str.isdecimal, others)][:1])
            raise UsageError(
                f"{self.to}: the port of the host stands alone, and --port names the port here: "
                f"muster forward {shlex.quote(self.job or 'JOB')} {last}{mine}"
            )
        if self.to.isdecimal() and not there:
            raise UsageError(f"port {self.to}: write 1 to {MOST_PORT}, or the path of a socket")
        if self.port and here is None:
            raise UsageError(f"--port {self.port}: write 0 to {MOST_PORT}")
        with running(self) as (state, channels, silent):
            host = state.hosts_by_rank[require_rank(self.rank, state.ranks)]
            exit_if_silent({host: silent[host]} if host in silent else {})
            target = Target(state.job, host, there or 0, "" if there else self.to)
            if not can_tell():
                print_note(OPEN_TO_ALL)
            forwarder = Forwarder(channels[host], target, print_note)
            with contextlib.closing(forwarder), listen(there or 0 if here is None else here) as at:
                if forwarder.watch().refused:
                    raise MusterError(f"{target.job} does not run on {target.host}")
                say(LISTENS.format(job=target.job, here=address_of(at), there=target.where))
                forwarder.run(at)
                say(f"{target.job} has ended on {target.host}\n")


def number_of(text: str) -> int | None:
    """A number of a port; None for another text."""
    return int(text) if text.isdecimal() and len(text) <= 5 and int(text) <= MOST_PORT else None


def address_of(listening: socket.socket) -> str:
    """`127.0.0.1:8888`."""
    return f"{LOOPBACK}:{listening.getsockname()[1]}"


def say(text: str) -> None:
    """Print lines, of which a host may have sent a part."""
    Progress.close_all()
    sys.stdout.write(harmless_lines(text))
    sys.stdout.flush()
