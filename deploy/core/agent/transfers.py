"""Large files on their way to this host, and from here to other hosts.

A file is known by its SHA-256, and accepted only if that is right. Until then it is `DIGEST.part`, and other
hosts can read it while it still arrives. The hosts of a push authenticate each other by certificates. The
driver makes them (core/content/transfer_state.py); they arrive over SSH and stay in memory. A host listens
only on its data network.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import json
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from ..wire.certificate_name import certificate_name
from ..wire.durable import keep_if_intact
from ..wire.files import digest as sha256
from ..wire.frames import Frame
from ..wire.os_errors import explain
from ..wire.private_folders import identity_of_folder
from .facts import bridge_last, host_addresses
from .rendezvous_port import PORTS

if TYPE_CHECKING:
    import ssl

CHUNK = 1 << 18
WAIT_SECONDS = 15.0  # for a byte that the sending host has not received yet


class Blobs:
    """The files of one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._changed = threading.Condition()

    def path(self, digest: str) -> Path:
        """The path of a complete file."""
        if not (len(digest) == 64 and digest.isalnum()):
            raise ValueError(f"not a SHA-256: {digest}")
        return self.root / digest

    def size(self, digest: str) -> int:
        """The bytes of a file that have arrived."""
        for path in (self.path(digest), self._part(digest)):
            with contextlib.suppress(OSError):
                return path.stat().st_size
        return 0

    def intact_size(self, digest: str) -> int:
        """The bytes of a file from an earlier push; a complete file that was damaged is removed.

        Each push calls this before it uses a file. So files need not be synced when they arrive.
        """
        if self.has(digest):
            keep_if_intact(self.path(digest), digest)
        return self.size(digest)

    def has(self, digest: str) -> bool:
        """Whether the whole file has arrived."""
        return self.path(digest).exists()

    def append(self, digest: str, offset: int, content: bytes | memoryview) -> None:
        """Append bytes to a file; ValueError if some before `offset` are missing.

        An agent with the same home, or a second command, may write the same file. So bytes that are already
        present are skipped; `complete` checks the whole file.
        """
        if self.has(digest):
            return
        self.root.mkdir(parents=True, exist_ok=True)
        with open(self._part(digest), "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            have = file.seek(0, os.SEEK_END)
            if have < offset:
                raise ValueError(f"{have} bytes have arrived, and these begin at {offset}")
            file.write(content[have - offset :])
        with self._changed:
            self._changed.notify_all()

    def complete(self, digest: str) -> None:
        """Accept a file that has arrived; if its digest is wrong, remove it and raise ValueError."""
        try:
            if not self.has(digest) and sha256(self._part(digest)) != digest:
                self._part(digest).unlink()
                raise ValueError("it was damaged on the way, and must be sent again")
            os.replace(self._part(digest), self.path(digest))
        except FileNotFoundError:
            if not self.has(digest):
                raise
        with self._changed:
            self._changed.notify_all()

    def read(self, digest: str, offset: int, size: int) -> Iterator[bytes]:
        """The bytes from an offset to the end, as they arrive; ends early when none comes for a while."""
        heard = time.monotonic()
        while offset < size and time.monotonic() - heard < WAIT_SECONDS:
            if content := self._some(digest, offset):
                offset, heard = offset + len(content), time.monotonic()
                yield content
            else:
                with self._changed:
                    self._changed.wait(0.2)

    def forget(self, digests: Sequence[str]) -> None:
        """Remove files that are no longer needed."""
        for digest in digests:
            with contextlib.suppress(FileNotFoundError):
                self.path(digest).unlink()

    def _some(self, digest: str, offset: int) -> bytes:
        for path in (self._part(digest), self.path(digest)):
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                file.seek(offset)
                return file.read(CHUNK)
        return b""

    def _part(self, digest: str) -> Path:
        return self.path(digest).with_suffix(".part")


ALONE = "127.0.0.1"
MOST_ADDRESSES = 8  # each is tried by other hosts, for seconds where packets are dropped
DISCARD = 9  # a port that is never called: to connect a UDP socket sends nothing


def addresses_for(chosen: Sequence[str], peers: Sequence[str]) -> list[str]:
    """The addresses of this host for connections from other hosts.

    `chosen`: the user's settings for this host (addr=, --network). Without it, and if it is an address that
    only a router has (NAT): the source addresses for connections to its peers. If these are on this machine:
    all its addresses.
    """
    resolved = dict.fromkeys(address for name in chosen for address in _resolved(name))
    if own := [address for address in resolved if _is_own(address)]:
        return own[:MOST_ADDRESSES]
    sources = dict.fromkeys(source for peer in peers for source in _source_for(peer))
    if usable := [source for source in sources if source not in peers]:  # each engine has its own 172.17.0.1
        return usable[:MOST_ADDRESSES]
    every = [address for _, address in sorted(host_addresses(), key=bridge_last)]
    return (every if peers else [])[:MOST_ADDRESSES] or [ALONE]


def listen(addresses: Sequence[str]) -> tuple[int, list[socket.socket]]:
    """A port that is free at all these addresses, and a listening socket at each."""
    failed = OSError(f"no free port between {PORTS.start} and {PORTS.stop - 1}")
    for port in reversed(PORTS):  # the rendezvous of a job takes a random port of the same range
        with contextlib.ExitStack() as opened:
            try:
                listeners = [opened.enter_context(_listener(address, port)) for address in addresses]
            except OSError as error:
                failed = error
                continue
            opened.pop_all()
            return port, listeners
    raise failed


def _listener(address: str, port: int) -> socket.socket:
    family, _, _, _, own = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(own[:2] if family == socket.AF_INET else own, family=family, backlog=512)


def _resolved(name: str) -> Iterator[str]:
    """The addresses of a name, or an address itself; not Debian's 127.0.1.1 for a host's own name."""
    with contextlib.suppress(OSError):
        for *_, target in socket.getaddrinfo(name, DISCARD, type=socket.SOCK_DGRAM):
            address = str(target[0])
            if address == name or not _is_loopback(address):
                yield address


def _is_own(address: str) -> bool:
    """Whether this host has an address: another's cannot be bound."""
    family, _, _, _, own = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM)[0]
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind(own)
        return True
    return False


def _source_for(peer: str) -> Iterator[str]:
    """The own address for connections to a peer; names are skipped, as they may take long to resolve."""
    with contextlib.suppress(OSError):
        entries = socket.getaddrinfo(peer, DISCARD, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)
        family, _, _, _, target = entries[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            address = str(probe.getsockname()[0])
        if not (_is_loopback(address) or address.startswith("fe80:")):
            yield address


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


NO_SSL = (
    "its Python has no module ssl, which encrypts what hosts send to each other: choose another Python with "
    "--python, or build this one with OpenSSL (libssl-dev, openssl-devel)"
)
WRONG_NAME = 62  # X509_V_ERR_HOSTNAME_MISMATCH


class Identity(NamedTuple):
    """The TLS contexts of this host for callers (`server`), and for hosts that it calls (`client`)."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def identity(texts: Mapping[str, str]) -> Identity:
    """The identity from PEM texts: `authority`, `certificate`, `key`. It accepts only hosts of the push."""
    try:
        import ssl  # it takes longer to load than all the rest, and a Python may lack it
    except ImportError:
        raise OSError(NO_SSL) from None
    made = []
    for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(cadata=texts["authority"])
        with _readable(texts["certificate"]) as certificate, _readable(texts["key"]) as key:
            context.load_cert_chain(certificate, key)
        context.verify_mode = ssl.CERT_REQUIRED
        made.append(context)
    server, client = made
    server.options |= ssl.OP_NO_TICKET
    return Identity(server, client)


@contextlib.contextmanager
def _readable(text: str) -> Iterator[str]:
    """A path at which a short text is read once: `ssl` takes paths alone, and a key belongs on no disk."""
    reader, writer = os.pipe()
    try:
        with open(writer, "wb") as file:
            file.write(text.encode())  # it fits into a pipe
        yield f"/proc/self/fd/{reader}"
    finally:
        os.close(reader)


def explain_tls(error: OSError) -> str:
    """Why a connection failed."""
    code = getattr(error, "verify_code", None)
    if code == WRONG_NAME:
        return "another host of this push answers there"
    if code is not None:
        why = getattr(error, "verify_message", code)
        return f"another machine answers there: its certificate is not of this push ({why})"
    reason = getattr(error, "reason", None)
    if isinstance(reason, str):  # an ssl.SSLError
        return f"no answer in TLS as a host of this push gives it ({reason.replace('_', ' ').lower()})"
    return error.strerror or str(error)


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


def pull(blobs: Blobs, identity: Identity, wanted: WantedFile, sources: Sequence[Peer]) -> Iterator[int]:
    """Read the rest of a file, from one source after the other; yields how many of its bytes are here.

    OSError if none of them has all.
    """
    reasons = []
    for source in [] if blobs.has(wanted.digest) else sources:
        try:
            yield from _pull_from(source, blobs, identity, wanted)
            reasons.append(f"{source.host}: has only {blobs.size(wanted.digest)} of {wanted.size} bytes")
        except OSError as error:
            reasons.append(f"{source.host} at {source.address} port {source.port}: {explain_tls(error)}")
        if blobs.size(wanted.digest) == wanted.size:
            break
    if blobs.size(wanted.digest) < wanted.size:
        raise OSError("; ".join(reasons))
    blobs.complete(wanted.digest)


def _pull_from(source: Peer, blobs: Blobs, identity: Identity, wanted: WantedFile) -> Iterator[int]:
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
            yield offset
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


REPORT_SECONDS = 0.25
WORKERS = 3
OLD_SECONDS = 7 * 86400.0  # files of transfers that were never resumed
MOST_LEFT = 256  # files of earlier transfers, whose sizes are reported
FOLDERS = {"images": "images", "wheels": "wheels", "data": "data/.chunks"}
"""The folder of each kind of files, in the agent's folder."""


class HostTransfers:
    """Files that arrive in one folder. They arrive in threads, and an event reports how each ended."""

    def __init__(self, muster_root: Path, send: Callable[[Frame], None]) -> None:
        self._muster_root, self._send = muster_root, send
        self._serving: tuple[Blobs, Identity] | None = None
        self._work: SimpleQueue[Callable[[], None]] | None = None
        self.accept: Callable[[Frame], None] = lambda request: None
        """Uses the content of a complete file; ValueError if the content is wrong."""

    def do_blob_serve(self, request: Frame, payload: bytes) -> Frame:
        """Serve files to other hosts of this push; answers how much of each file has arrived already.

        `digests`: the files that this host needs; null for all files of earlier transfers.
        """
        root = self._muster_root / FOLDERS[request["folder"]]
        for folder in (root.parent, root):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        blobs, identity_ = Blobs(root), identity(request["identity"])
        digests = _left_in(root) if request["digests"] is None else request["digests"]
        have = {digest: blobs.intact_size(digest) for digest in digests}
        addresses = addresses_for(request["addresses"], request["peers"])
        self._serving = blobs, identity_
        port = Server(blobs, identity_, addresses).port
        return {
            "port": port,
            "addresses": addresses,
            "have": have,
            "place": identity_of_folder(root.parent / ".place"),
        }

    def _served(self) -> tuple[Blobs, Identity]:
        if self._serving is None:
            raise ValueError("files are transferred only after `blob_serve`")
        return self._serving

    @property
    def _blobs(self) -> Blobs:
        return self._served()[0]

    def do_blob_take(self, request: Frame, payload: bytes) -> Frame:
        """Take a piece of a file from the driver."""
        self._blobs.append(request["digest"], request["offset"], payload)
        return {}

    def do_blob_complete(self, request: Frame, payload: bytes) -> Frame:
        """Accept a file whose pieces have all come."""
        self._in_thread(request, lambda: self._blobs.complete(request["digest"]))
        return {}

    def do_blob_pull(self, request: Frame, payload: bytes) -> Frame:
        """Fetch a file from other hosts."""
        self._in_thread(request, lambda: self._pull(request))
        return {}

    def do_blob_forget(self, request: Frame, payload: bytes) -> Frame:
        """Remove files that are no longer needed."""
        self._blobs.forget(request["digests"])
        return {}

    def _in_thread(self, request: Frame, get: Callable[[], None]) -> None:
        """Get a file in one of the threads, and report how that ended."""
        if self._work is None:
            self._work = SimpleQueue()
            for _ in range(WORKERS):
                threading.Thread(target=_work_off, args=(self._work,), daemon=True).start()
        self._work.put(lambda: self._get(request, get))

    def _get(self, request: Frame, get: Callable[[], None]) -> None:
        digest = request["digest"]
        try:
            get()
        except (OSError, ValueError) as error:
            have = self._blobs.size(digest)
            self._send({"event": "file-stuck", "digest": digest, "have": have, "text": explain(error)})
            return
        try:
            self.accept(request)
        except (OSError, ValueError, LookupError) as error:
            wrong = not isinstance(error, OSError)
            self._send({"event": "file-got", "digest": digest, "error": explain(error), "wrong": wrong})
        else:
            self._send({"event": "file-got", "digest": digest})

    def _pull(self, request: Frame) -> None:
        digest, reported = request["digest"], time.monotonic()
        sources = [Peer(*source) for source in request["sources"]]
        for have in pull(*self._served(), WantedFile(digest, request["bytes"]), sources):
            if time.monotonic() - reported > REPORT_SECONDS:
                reported = time.monotonic()
                self._send({"event": "file-have", "digest": digest, "have": have})


def _work_off(work: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        work.get()()


def _left_in(root: Path) -> list[str]:
    """The digests of files of earlier transfers; old files are removed."""
    digests = set()
    for path in root.iterdir():
        if re.fullmatch(r"[0-9a-f]{64}(\.part)?", path.name):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > OLD_SECONDS:
                    path.unlink()
                else:
                    digests.add(path.stem)
    return sorted(digests)[:MOST_LEFT]
