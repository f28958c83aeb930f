"""An agent over SSH: the command of a session, whose end is the agent's."""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import hashlib
import io
import logging
import os
import shlex
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import paramiko
from paramiko.pkey import UnknownKeyType
from paramiko.ssh_exception import (
    AuthenticationException,
    BadHostKeyException,
    ChannelException,
    NoValidConnectionsError,
    SSHException,
)

from ...errors import HostError
from ...wire.frames import Readable
from ..bootstrap import command
from ..pipe import KILLED, CountingWriter, LostError, why_ended
from .openssh import OF_HOST_KEYS, absent_identities, remedy
from .ssh_config import Route, known_hosts, ssh_home

if TYPE_CHECKING:
    from typing_extensions import Buffer

# paramiko logs its exceptions too, and Muster reports these.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

# How often paramiko's thread checks whether a keepalive is due. Its default of 0.1 s wakes an idle connection
# ten times a second.
TURN_SECONDS = 1.0
# The names of signatures for a key of type ssh-rsa (RFC 8332).
_KEY_OF = {"rsa-sha2-512": "ssh-rsa", "rsa-sha2-256": "ssh-rsa"}


class UnknownHostKey(SSHException):
    """A host whose key is in no known_hosts file. `unread`: why a file could not be read."""

    def __init__(self, shown: str, unread: Mapping[str, str] | None = None) -> None:
        super().__init__(shown)
        self.unread = unread or {}


class HostKeyPolicy(paramiko.MissingHostKeyPolicy):
    """Judges every host key. paramiko gets no known keys: it would use only one key of each type."""

    def __init__(self, known: KnownKeys) -> None:
        self._known = known

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        trusted = self._known.trusted
        if key in trusted:
            return
        if trusted:
            same = [known for known in trusted if known.get_name() == key.get_name()]
            raise BadHostKeyException(hostname, key, (same or trusted)[0])
        raise UnknownHostKey(f"{key.get_name()} {fingerprint(key)}", self._known.unread)


def fingerprint(key: paramiko.PKey) -> str:
    """SHA256:…, as ssh-keygen -l writes it."""
    digest = hashlib.sha256(key.asbytes()).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


class KnownKeys(NamedTuple):
    """The keys of a host in known_hosts files."""

    trusted: tuple[paramiko.PKey, ...]
    unread: Mapping[str, str]
    """The files that could not be read, and why."""


def known_keys(route: Route) -> KnownKeys:
    """The keys that known_hosts files have for a host: by its address, or by its alias (HostKeyAlias).

    A line that cannot be read is passed over, as OpenSSH does.
    """
    host, lines, unread = route.known_as.lower(), list[tuple[str, str]](), dict[str, str]()
    for path in route.known_hosts_files:
        try:
            known = known_hosts(Path(path).read_text(errors="replace"))
        except OSError as error:
            unread[path] = error.strerror or str(error)
            continue
        lines += known.by_name.get(host, ())
        lines += [(kind, key) for name, kind, key in known.hashed if _is_hash_of(host, name)]
    keys = [_key_of(kind, _decoded(key)) for kind, key in lines]
    return KnownKeys(tuple(key for key in keys if key), unread)


def _is_hash_of(host: str, name: str) -> bool:
    with contextlib.suppress(ValueError, AssertionError):  # paramiko asserts that the salt has 20 bytes
        return paramiko.HostKeys.hash_host(host, name) == name
    return False


def _decoded(text: str) -> bytes:
    """The key of a line, or nothing."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _key_of(kind: str, content: bytes) -> paramiko.PKey | None:
    """A key, if paramiko supports its type."""
    with contextlib.suppress(UnknownKeyType, SSHException, ValueError):
        return paramiko.PKey.from_type_string(kind, content)
    return None


class KeyFiles:
    """Tries the key files of a route, one after the other: an authentication strategy of paramiko."""

    def __init__(self, route: Route) -> None:
        self._route = route

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in; `AuthenticationException` with the reason why the last key was refused."""
        last = ""
        for path in self._route.identity_files:
            try:
                more = transport.auth_publickey(self._route.user, paramiko.PKey.from_path(path))
            except AuthenticationException as error:
                last = str(error)
            except (SSHException, UnknownKeyType, OSError, ValueError) as error:
                last = f"{path}: {error}"
            else:
                if more:
                    raise AuthenticationException(f"it also asks for {', '.join(more)}")
                return
        raise AuthenticationException(last)


class PinnedClient(paramiko.SSHClient):
    """An SSH client that only trusts known host keys."""

    def __init__(self, route: Route) -> None:
        super().__init__()
        self._route, self._known = route, known_keys(route)
        self.set_missing_host_key_policy(HostKeyPolicy(self._known))

    def open(self) -> paramiko.Transport:
        """Connect and log in."""
        route = self._route
        options: Any = {"auth_strategy": KeyFiles(route), "transport_factory": self._make_transport}
        self.connect(
            route.hostname,
            route.port,
            timeout=route.connect_seconds,
            banner_timeout=route.connect_seconds,
            auth_timeout=route.connect_seconds,
            **options,
        )
        transport = self.get_transport()
        assert transport is not None  # noqa: S101  # `connect` has returned
        return transport

    def _make_transport(self, sock: socket.socket, **options: Any) -> paramiko.Transport:
        """A transport that asks the host for a key of a known type."""
        transport = paramiko.Transport(sock, **options)
        sock.settimeout(TURN_SECONDS)
        security = transport.get_security_options()
        # One call of the library for a packet, in place of a cipher and a MAC of Python's hmac.
        security.ciphers = sorted(security.ciphers, key=lambda name: "gcm" not in name)
        types = {key.get_name() for key in self._known.trusted}
        security.key_types = sorted(security.key_types, key=lambda name: _KEY_OF.get(name, name) not in types)
        return transport

    def close(self) -> None:
        """Disconnect."""
        if transport := self.get_transport():
            with contextlib.suppress(OSError):
                transport.sock.shutdown(socket.SHUT_RDWR)  # ends the wait of the transport's thread
        super().close()


KEEPALIVE_SECONDS = 5
PACKET_BYTES = 1 << 15  # the most that OpenSSH takes at once
# Bytes that a host may send before this side reads them; paramiko's own 2 MiB would be 512 MiB for 256 hosts.
WINDOW_BYTES = 1 << 19


class _Incoming(io.RawIOBase):
    """The input of a paramiko channel, as a raw stream (paramiko's files write when they are collected)."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer)
        received = self._channel.recv(len(view))
        view[: len(received)] = received
        return len(received)


class _Outgoing:
    """Sends through a paramiko channel, at once."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self.written = 0

    def write(self, content: bytes, /) -> None:
        rest = memoryview(content)
        try:
            while rest:  # sendall() would copy the whole rest for every packet
                sent = self._channel.send(bytes(rest[:PACKET_BYTES]))
                if not sent:
                    raise EOFError("the channel is closed")
                self.written += sent
                rest = rest[sent:]
        except (EOFError, SSHException) as error:  # paramiko's errors for a connection that broke
            raise BrokenPipeError(errno.EPIPE, f"the SSH connection broke: {error}") from error

    def flush(self) -> None:
        """Nothing waits here."""


class SshPipe:
    """An agent as the command of an SSH session; the session's end is the agent's."""

    remote = True

    def __init__(self, route: Route, python: str) -> None:
        self._client = PinnedClient(route)
        try:
            # A closed client no longer has its transport.
            self._transport = self._client.open()
            self._transport.set_keepalive(KEEPALIVE_SECONDS)
            self._channel: Any = self._transport.open_session(WINDOW_BYTES, timeout=route.connect_seconds)
            self._channel.exec_command(command(python))
        # paramiko raises any error of its thread: ValueError for a key of no curve, and others.
        except Exception as error:  # noqa: BLE001
            self._client.close()
            raise _explain(error, route) from None
        self._reader = io.BufferedReader(_Incoming(self._channel), 1 << 16)
        self._writer = _Outgoing(self._channel)
        self._python = python

    @property
    def reader(self) -> Readable:
        """The agent's stdout."""
        return self._reader

    @property
    def writer(self) -> CountingWriter:
        """The agent's stdin: its lifeline."""
        return self._writer

    def last_words(self, printed: str = "") -> LostError:
        """The last line of stderr, else `printed`, and the exit status, or that the connection broke."""
        if not self._channel.status_event.wait(1.0) or self._channel.exit_status == -1:
            if self._transport.is_active():  # sshd reports no exit status after a signal
                return why_ended(KILLED, "", "", self._python)
            return LostError("the SSH connection broke", "look at the host's console and its network")
        return why_ended(self._channel.exit_status, self._stderr(), printed, self._python)

    def _stderr(self) -> str:
        self._channel.settimeout(1.0)
        with contextlib.suppress(socket.timeout):
            return str(self._channel.recv_stderr(1 << 16).decode(errors="replace").strip())
        return ""

    def close(self, *, patient: bool = True) -> None:
        """Cut the lifeline: sshd closes the agent's stdin."""
        self._client.close()


def _explain(error: Exception, route: Route) -> HostError:
    """Why the host was not reached, and the remedy."""
    explain = next((explain for kind, explain in _CAUSES if isinstance(error, kind)), _other)
    if not isinstance(explain, tuple):
        return explain(error, route)
    kind, text = explain
    server, seconds = f"{route.hostname} port {route.port}", route.connect_seconds
    return _problem(kind, text.format(name=route.hostname, server=server, seconds=seconds), route)


def _problem(kind: str, text: str, route: Route) -> HostError:
    return HostError(kind, text, _advice(kind, route))


def _advice(kind: str, route: Route) -> str:
    login = route.confirming if kind in OF_HOST_KEYS else route.ssh
    return remedy(kind, route.name, shlex.join(login), _forget(route))


def _forget(route: Route) -> str:
    """The command that removes the key of a host from its known_hosts file."""
    file = next(iter(route.user_known_hosts), "")
    elsewhere = ("-f", file) if file and file != str(Path(ssh_home(), ".ssh", "known_hosts")) else ()
    return shlex.join(("ssh-keygen", "-R", route.known_as, *elsewhere))


def _server(route: Route) -> str:
    return f"{route.hostname} port {route.port}"


def _known(route: Route) -> str:
    return ", ".join(route.known_hosts_files) or "known_hosts"


def _key_changed(error: Any, route: Route) -> HostError:
    text = (
        f"HOST KEY CHANGED: {_server(route)} shows {fingerprint(error.key)}, {_known(route)} has "
        f"{fingerprint(error.expected_key)}"
    )
    return _problem("ssh.host-key-changed", text, route)


def _key_unknown(error: Any, route: Route) -> HostError:
    if error.unread:
        reasons = "; ".join(f"{path}: {reason}" for path, reason in error.unread.items())
        text = f"host key of {_server(route)} ({error}) cannot be checked: {reasons}"
        return HostError("ssh.host-key-unknown", text, "let your user read that file")
    text = f"host key of {_server(route)} is not known ({error}, looked in {_known(route)})"
    if all(path == os.devnull for path in route.user_known_hosts):
        remedy = (
            "UserKnownHostsFile keeps no key; name a file there that does, such as ~/.ssh/known_hosts, then "
            "compare the fingerprint with the host's own, and confirm it once with: "
        )
        return HostError("ssh.host-key-unknown", text, remedy + shlex.join(route.confirming))
    return _problem("ssh.host-key-unknown", text, route)


def _login_refused(error: Any, route: Route) -> HostError:
    keys = ", ".join(route.identity_files) or "none"
    text = f"{route.user} may not log in at {_server(route)} with the keys {keys} ({_plain(error)})"
    remedy = absent_identities(route) or "add the public key there, or name another account (user=)"
    return HostError("ssh.login-refused", text, remedy)


def _no_connection(error: Any, route: Route) -> HostError:
    reasons = {str(getattr(reason, "strerror", reason)) for reason in error.errors.values()}
    kind = "ssh.port-refused" if reasons == {os.strerror(errno.ECONNREFUSED)} else "ssh.unreachable"
    return _problem(kind, f"cannot connect to {_server(route)}: {'; '.join(sorted(reasons))}", route)


def _other(error: Any, route: Route) -> HostError:
    # paramiko raises the same for a banner that does not come, and for a connection that ends before it.
    if isinstance(error.__context__, (EOFError, ConnectionError)):
        return _problem("ssh.closed", f"{_server(route)} closed the connection before it spoke SSH", route)
    if isinstance(error, SSHException) and any(sign in str(error) for sign in _SILENT):
        text = f"{_server(route)} accepts connections but does not speak SSH within {route.connect_seconds} s"
        return _problem("ssh.silent", text, route)
    return _problem("ssh.failed", f"cannot connect to {_server(route)}: {_plain(error)}", route)


_Explain = Callable[[Any, Route], HostError]
# The first match counts: several of these are subclasses of OSError, or of paramiko's SSHException. Either a
# function, or a kind and a text.
_CAUSES: tuple[tuple[type[Exception], _Explain | tuple[str, str]], ...] = (
    (BadHostKeyException, _key_changed),
    (UnknownHostKey, _key_unknown),
    (AuthenticationException, _login_refused),
    (socket.gaierror, ("ssh.name-unknown", "the name {name} is not known")),
    (TimeoutError, ("ssh.unreachable", "no answer from {server} within {seconds} s")),
    (NoValidConnectionsError, _no_connection),
    (EOFError, ("ssh.closed", "{server} closed the connection before it was made")),
    (ChannelException, ("ssh.no-session", "{server} accepts the login, but no session")),
)
_SILENT = ("banner", "No existing session")


def _plain(error: Exception) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__
