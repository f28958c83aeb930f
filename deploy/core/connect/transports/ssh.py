"""An agent over SSH, by paramiko: the command of a session, whose end is the agent's.

It starts sooner than a process of `ssh`. Where it cannot log in, OpenSSH may, or says why (opener.py).
"""

from __future__ import annotations

import base64
import contextlib
import errno
import io
import logging
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paramiko
from paramiko.pkey import UnknownKeyType
from paramiko.ssh_exception import AuthenticationException, SSHException

from ...errors import HostError
from ..bootstrap import command
from ..pipe import KILLED, CountingWriter, LostError, why_ended
from .openssh import REMEDIES
from .ssh_config import Route, known_hosts

if TYPE_CHECKING:
    from typing_extensions import Buffer

# paramiko logs its exceptions too.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

# How often paramiko's thread checks whether a keepalive is due. Its default of 0.1 s wakes an idle connection
# ten times a second.
TURN_SECONDS = 1.0


def known_keys(route: Route) -> Iterator[paramiko.PKey]:
    """The keys that known_hosts files have for a host: by its address, or by its alias (HostKeyAlias).

    A line or file that cannot be read is passed over, as OpenSSH does.
    """
    host, lines = route.known_as.lower(), list[tuple[str, str]]()
    for path in route.known_hosts_files:
        with contextlib.suppress(OSError):
            known = known_hosts(Path(path).read_text(errors="replace"))
            lines += known.by_name.get(host, ())
            lines += [(kind, key) for name, kind, key in known.hashed if _is_hash_of(host, name)]
    for kind, key in lines:
        with contextlib.suppress(UnknownKeyType, SSHException, ValueError):
            yield paramiko.PKey.from_type_string(kind, base64.b64decode(key, validate=True))


def _is_hash_of(host: str, name: str) -> bool:
    with contextlib.suppress(ValueError, AssertionError):  # paramiko asserts that the salt has 20 bytes
        return paramiko.HostKeys.hash_host(host, name) == name
    return False


class PinnedClient(paramiko.SSHClient):
    """An SSH client that only trusts known host keys: paramiko refuses any other key by default.

    It knows one key of each type. A host that shows another of its pinned keys is left to OpenSSH.
    """

    def __init__(self, route: Route) -> None:
        super().__init__()
        self._route = route
        name = route.hostname if route.port == 22 else f"[{route.hostname}]:{route.port}"
        for key in known_keys(route):
            self.get_host_keys().add(name, key.get_name(), key)

    def open(self) -> paramiko.Transport:
        """Connect and log in."""
        route = self._route
        options: Any = {"auth_strategy": self, "transport_factory": _make_transport}
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

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in with the key files, one after the other: paramiko calls this.

        `AuthenticationException` if the host accepts none of them, or asks for more than a key.
        """
        for path in self._route.identity_files:
            with contextlib.suppress(SSHException, UnknownKeyType, OSError, ValueError):
                if not transport.auth_publickey(self._route.user, paramiko.PKey.from_path(path)):
                    return
        raise AuthenticationException

    def close(self) -> None:
        """Disconnect."""
        if transport := self.get_transport():
            with contextlib.suppress(OSError):
                transport.sock.shutdown(socket.SHUT_RDWR)  # ends the wait of the transport's thread
        super().close()


def _make_transport(sock: socket.socket, **options: Any) -> paramiko.Transport:
    transport = paramiko.Transport(sock, **options)
    sock.settimeout(TURN_SECONDS)
    security = transport.get_security_options()
    # One call of the library for a packet, in place of a cipher and a MAC of Python's hmac.
    security.ciphers = sorted(security.ciphers, key=lambda name: "gcm" not in name)
    return transport


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


def send(channel: paramiko.Channel, content: memoryview) -> int:
    """Send some bytes at once, and return their number."""
    try:
        if sent := channel.send(bytes(content)):
            return sent
        raise EOFError("the channel is closed")
    except (EOFError, SSHException) as error:  # paramiko's errors for a connection that broke
        raise BrokenPipeError(errno.EPIPE, f"the SSH connection broke: {error}") from error


class NotLoggedInError(Exception):
    """paramiko could not log in. OpenSSH may have another way, or says why."""


class SshPipe:
    """An agent as the command of an SSH session; the session's end is the agent's.

    `HostError` for a host that does not answer in time, and `NotLoggedInError` for any other problem.
    """

    remote = True

    def __init__(self, route: Route, python: str) -> None:
        self._client = PinnedClient(route)
        began = time.monotonic()
        try:
            # A closed client no longer has its transport.
            self._transport = self._client.open()
            self._transport.set_keepalive(KEEPALIVE_SECONDS)
            self._channel: Any = self._transport.open_session(WINDOW_BYTES, timeout=route.connect_seconds)
            self._channel.exec_command(command(python))
        # paramiko raises any error of its thread: ValueError for a key of no curve, and others.
        except Exception as error:
            self._client.close()
            is_late = time.monotonic() - began > 0.9 * route.connect_seconds
            if is_late and not isinstance(error, AuthenticationException):
                raise _no_answer(error, route) from None
            raise NotLoggedInError from error
        self.reader = io.BufferedReader(_Incoming(self._channel), 1 << 16)
        # sendall() would copy the whole rest for every packet.
        self.writer = CountingWriter(partial(send, self._channel), PACKET_BYTES)
        self._python = python

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


def _no_answer(error: Exception, route: Route) -> HostError:
    server, within = f"{route.hostname} port {route.port}", f"within {route.connect_seconds} s"
    if isinstance(error, TimeoutError):
        return HostError("ssh.unreachable", f"no answer from {server} {within}", REMEDIES["ssh.unreachable"])
    text = f"{server} accepts connections but does not speak SSH {within}"
    return HostError("ssh.silent", text, REMEDIES["ssh.silent"])
