"""A Fabric connection with pinned trust: a host key that is not known already is refused.

Fabric's own Connection trusts any host key (fabric#2071).
"""

from __future__ import annotations

import base64
import hashlib
import logging
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fabric
import paramiko
from paramiko.ssh_exception import BadHostKeyException, SSHException

from .known_hosts import KnownKeys, is_in_list, known_keys
from .login import Login
from .proxy_command import Proxy
from .ssh_config import Route

# paramiko logs what it also raises; our message is the one to read.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


# The names of signatures for a key of type ssh-rsa (RFC 8332).
_KEY_OF = {"rsa-sha2-512": "ssh-rsa", "rsa-sha2-256": "ssh-rsa"}


class UnknownHostKey(SSHException):
    """A host whose key is in no known_hosts file. `unread`: why a file could not be looked into."""

    def __init__(self, shown: str, unread: Mapping[str, str] | None = None) -> None:
        super().__init__(shown)
        self.unread = unread or {}


class CertifiedHostKey(UnknownHostKey):
    """A host that only a certificate authority vouches for."""


class RevokedHostKey(SSHException):
    """A host that shows a key which was revoked."""


class _Judge(paramiko.MissingHostKeyPolicy):
    """Judges every host key. paramiko gets no known keys: it would use only one key of each type."""

    def __init__(self, route: Route, known: KnownKeys) -> None:
        self._route, self._known = route, known

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        known, listed = self._known, self._route.revoked_host_keys
        shown = f"{key.get_name()} {fingerprint(key)}"
        if key.asbytes() in known.revoked or (listed and is_in_list(key, Path(listed))):
            raise RevokedHostKey(shown)
        if key in known.trusted:
            return
        if known.trusted:
            same = [trusted for trusted in known.trusted if trusted.get_name() == key.get_name()]
            raise BadHostKeyException(hostname, key, (same or known.trusted)[0])
        raise (CertifiedHostKey if known.certified else UnknownHostKey)(shown, known.unread)


class PinnedConnection(fabric.Connection):  # type: ignore[misc]  # fabric has no types
    """A Fabric connection that only trusts host keys which are known already."""

    # Invoke takes what the class does not have for a change of the configuration, and merges all of it anew:
    # that was most of the cost of a connection that is not open yet.
    _route: Any = None
    _known: Any = None
    _proxy: Proxy | None = None

    def __init__(self, route: Route) -> None:
        super().__init__(
            route.hostname,
            user=route.user,
            port=route.port,
            connect_timeout=route.connect_seconds,
            gateway=route.proxy_command,
            # One Config per connection: Invoke remakes it at each access; two threads would see it half made.
            config=fabric.Config(overrides={"load_ssh_configs": False}),
            connect_kwargs={
                "auth_strategy": Login(route),
                "transport_factory": self._make_transport,
                "banner_timeout": route.connect_seconds,
                "auth_timeout": route.connect_seconds,
            },
        )
        self._route = route
        self._known = known_keys(route)
        self.client.set_missing_host_key_policy(_Judge(route, self._known))

    def _make_transport(self, sock: socket.socket, **options: Any) -> paramiko.Transport:
        """A transport that asks the host for a key of a type that is known already."""
        transport = paramiko.Transport(sock, **options)
        security = transport.get_security_options()
        types = {key.get_name() for key in self._known.trusted}
        security.key_types = sorted(security.key_types, key=lambda name: _KEY_OF.get(name, name) not in types)
        return transport

    def open_gateway(self) -> socket.socket:
        """Start the route's proxy command; returns the socket that Fabric connects through."""
        self._proxy = Proxy(self._route)
        return self._proxy.socket

    def proxys_last_words(self) -> str | None:
        """The last line of the proxy command, if there is such a command and it has ended."""
        return self._proxy.last_words() if self._proxy else None

    def close(self) -> None:
        """Disconnect, and end the proxy command."""
        super().close()
        if self._proxy:
            self._proxy.close()


def fingerprint(key: paramiko.PKey) -> str:
    """SHA256:…, as ssh-keygen -l writes it."""
    digest = hashlib.sha256(key.asbytes()).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
