"""A connection with pinned trust by paramiko, through a ProxyCommand if the SSH configuration names one."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import subprocess
import tempfile
from typing import Any

import paramiko

from .host_keys import HostKeyPolicy, known_keys
from .login import Login
from .ssh_config import Route

# paramiko logs its exceptions too, and Muster reports these.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

END_SECONDS = 1.0
# How often paramiko's thread checks whether a keepalive is due. Its default of 0.1 s wakes an idle connection
# ten times a second.
TURN_SECONDS = 1.0
LAST_BYTES = 4096
# The names of signatures for a key of type ssh-rsa (RFC 8332).
_KEY_OF = {"rsa-sha2-512": "ssh-rsa", "rsa-sha2-256": "ssh-rsa"}


class PinnedClient(paramiko.SSHClient):
    """An SSH client that only trusts known host keys."""

    def __init__(self, route: Route) -> None:
        super().__init__()
        self._route, self._known = route, known_keys(route)
        self._proxy: Proxy | None = None
        self.set_missing_host_key_policy(HostKeyPolicy(route, self._known))

    def open(self) -> paramiko.Transport:
        """Connect and log in."""
        route = self._route
        self._proxy = Proxy(route) if route.proxy_command else None
        options: Any = {"auth_strategy": Login(route), "transport_factory": self._make_transport}
        self.connect(
            route.hostname,
            route.port,
            timeout=route.connect_seconds,
            banner_timeout=route.connect_seconds,
            auth_timeout=route.connect_seconds,
            sock=self._proxy.socket if self._proxy else None,
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

    def last_line_of_proxy(self) -> str | None:
        """The last line of the proxy command, if there is such a command and it has ended."""
        return self._proxy.last_line() if self._proxy else None

    def close(self) -> None:
        """Disconnect, and end the proxy command."""
        if transport := self.get_transport():
            with contextlib.suppress(OSError):
                transport.sock.shutdown(socket.SHUT_RDWR)  # ends the wait of the transport's thread
        super().close()
        if self._proxy:
            self._proxy.close()


class Proxy:
    """The running proxy command of a route (ssh_config(5), ProxyCommand); `socket` leads to it.

    paramiko's own talks through pipes: it reads forever after the command has ended, and waits with
    select(2), which takes no file descriptor above 1023.
    """

    def __init__(self, route: Route) -> None:
        self.socket, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the command runs
        with theirs:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {_command_of(route)}"],  # as ssh does
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._errors,
                start_new_session=True,  # only the driver handles a Ctrl-C on the terminal
            )

    def last_line(self) -> str | None:
        """The command's last line if it has ended, or is just ending; None if it runs."""
        try:
            status = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        end = os.fstat(self._errors.fileno()).st_size
        tail = os.pread(self._errors.fileno(), LAST_BYTES, max(0, end - LAST_BYTES))
        lines = tail.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else f"exit status {status}"

    def close(self) -> None:
        """End the command."""
        self.socket.close()
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self._errors.close()


def _command_of(route: Route) -> str:
    """The command with its tokens replaced: %h, %n, %p, %r and %% (ssh_config(5), TOKENS)."""
    tokens = {"h": route.hostname, "n": route.name, "p": str(route.port), "r": route.user, "%": "%"}
    return re.sub(r"%([hnpr%])", lambda token: tokens[token[1]], route.proxy_command or "")
