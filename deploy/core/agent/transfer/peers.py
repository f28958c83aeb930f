"""Files go from host to host over TLS: a host serves them, and reads them from hosts that serve them.

A host that needs a file connects to a host that has it, or will have it, and resumes where it stopped.
So a chain of hosts is as fast as its slowest link, and an interrupted transfer resumes. Both hosts prove by a
certificate that they belong to the push (tls.py) before either sends anything else.
"""

from __future__ import annotations

import collections
import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...wire.certificate_name import certificate_name
from .blobs import CHUNK, WAIT_SECONDS, Blobs
from .listening import listen
from .tls import Identity, explain

if TYPE_CHECKING:
    import ssl

CONNECT_SECONDS = 5.0
# A source that sends less in this time is left for another: it would keep a push from its end.
SLOW_SECONDS, SLOW_BYTES = 60.0, 1 << 20
MOST_UNPROVEN = 64  # callers that have not shown a certificate yet


class Peer(NamedTuple):
    """A host that serves a file. Its certificate names it: each container engine has its own 172.17.0.1."""

    host: str
    address: str
    port: int


class Server:
    """Serves files to other hosts of this push, only at these addresses of this host."""

    def __init__(self, blobs: Blobs, identity: Identity, addresses: Sequence[str]) -> None:
        self._blobs, self._context = blobs, identity.server
        self.port, listeners = listen(addresses)
        self._unproven: collections.deque[ssl.SSLSocket] = collections.deque()
        """Callers that have shown no certificate; each has a thread."""
        for listener in listeners:
            threading.Thread(target=self._serve, args=(listener,), daemon=True).start()

    def _serve(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                raw, _ = listener.accept()
                raw.settimeout(CONNECT_SECONDS)
                with contextlib.suppress(OSError):  # the caller has hung up
                    _send_at_once(raw)
                    caller = self._context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
                    self._unproven.append(caller)
                    if len(self._unproven) > MOST_UNPROVEN:
                        self._hang_up()
                    threading.Thread(target=self._answer, args=(caller,), daemon=True).start()

    def _hang_up(self) -> None:
        """Disconnect the oldest caller that has shown no certificate: a host of this push does so at once."""
        with contextlib.suppress(OSError, IndexError):
            # The plain socket's method: that of TLS would break the thread that uses the connection.
            socket.socket.shutdown(self._unproven.popleft(), socket.SHUT_RDWR)

    def _answer(self, caller: ssl.SSLSocket) -> None:
        with caller, contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            try:
                caller.do_handshake()
            finally:
                with contextlib.suppress(ValueError):  # `_hang_up` has removed it
                    self._unproven.remove(caller)
            request = json.loads(caller.makefile("rb").readline(4096))
            caller.settimeout(WAIT_SECONDS)
            offset, size = int(request["offset"]), int(request["size"])
            for content in self._blobs.read(request["digest"], offset, size):
                caller.sendall(content)


class WantedFile(NamedTuple):
    """A file, and its size in bytes."""

    digest: str
    size: int


def pull(
    blobs: Blobs,
    identity: Identity,
    wanted: WantedFile,
    sources: Sequence[Peer],
    on_progress: Callable[[int], None],
) -> None:
    """Read the rest of a file, from one source after the other; OSError if none of them has all."""
    reasons = []
    for source in [] if blobs.has(wanted.digest) else sources:
        try:
            _pull_from(source, blobs, identity, wanted, on_progress)
            reasons.append(f"{source.host}: has only {blobs.size(wanted.digest)} of {wanted.size} bytes")
        except OSError as error:
            reasons.append(f"{source.host} at {source.address} port {source.port}: {explain(error)}")
        if blobs.size(wanted.digest) == wanted.size:
            break
    if blobs.size(wanted.digest) < wanted.size:
        raise OSError("; ".join(reasons))
    blobs.complete(wanted.digest)


def _pull_from(
    source: Peer, blobs: Blobs, identity: Identity, wanted: WantedFile, on_progress: Callable[[int], None]
) -> None:
    offset, piece = blobs.size(wanted.digest), memoryview(bytearray(CHUNK))
    with (
        _send_at_once(socket.create_connection((source.address, source.port), CONNECT_SECONDS)) as raw,
        identity.client.wrap_socket(raw, server_hostname=certificate_name(source.host)) as connection,
    ):
        connection.settimeout(WAIT_SECONDS + CONNECT_SECONDS)
        connection.sendall(json.dumps({**wanted._asdict(), "offset": offset}).encode() + b"\n")
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        since, enough = time.monotonic(), offset + SLOW_BYTES
        while offset < wanted.size and (length := _read(connection, piece[: wanted.size - offset], poll)):
            blobs.append(wanted.digest, offset, piece[:length])
            offset += length
            on_progress(offset)
            if offset >= enough:
                since, enough = time.monotonic(), offset + SLOW_BYTES
            elif time.monotonic() - since > SLOW_SECONDS:
                raise OSError(f"it sends less than 1 MiB in {SLOW_SECONDS:.0f} s")


def _send_at_once(raw: socket.socket) -> socket.socket:
    """Without this, data after a handshake waits for an acknowledgement, which is delayed by 40 ms."""
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return raw


def _read(connection: ssl.SSLSocket, piece: memoryview, poll: select.poll) -> int:
    """Fill `piece` with the data that has arrived; returns its length, 0 at the end.

    TLS returns 16 KiB at a time: storing each part alone would cost more than its encryption.
    """
    length = connection.recv_into(piece)
    while 0 < length < len(piece) and (poll.poll(0) or connection.pending()):
        more = connection.recv_into(piece[length:])
        if not more:
            break
        length += more
    return length
