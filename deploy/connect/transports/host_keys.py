"""A Fabric connection with pinned trust: host keys are known before use, or refused.

Fabric's own Connection trusts any host key (fabric#2071).
"""

from __future__ import annotations

import base64
import contextlib
import fnmatch
import hashlib
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import fabric
import paramiko
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey
from paramiko.ssh_exception import SSHException

from .proxy_command import Proxy
from .ssh_config import Route

# paramiko logs what it also raises; our message is the one to read.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class UnknownHostKey(SSHException):
    """A host whose key is in no known_hosts file."""


class _Refuse(paramiko.MissingHostKeyPolicy):
    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> NoReturn:
        raise UnknownHostKey(f"{key.get_name()} {fingerprint(key)}")


class PinnedConnection(fabric.Connection):  # type: ignore[misc]  # fabric has no types
    """A Fabric connection that only trusts host keys which are known already."""

    def __init__(self, route: Route) -> None:
        super().__init__(
            route.hostname,
            user=route.user,
            port=route.port,
            connect_timeout=route.connect_seconds,
            gateway=route.proxy_command,
            config=fabric.Config(overrides={"load_ssh_configs": False}),
            connect_kwargs={
                "key_filename": list(route.identity_files),
                "allow_agent": not route.identities_only,
                "look_for_keys": False,  # ssh -G has listed them
                "banner_timeout": route.connect_seconds,
                "auth_timeout": route.connect_seconds,
            },
        )
        self._route = route
        self._proxy: Proxy | None = None
        self.client.set_missing_host_key_policy(_Refuse())
        for entry in known_keys(route):
            self.client.get_host_keys().add(route.server_name, entry.get_name(), entry)

    def open_gateway(self) -> socket.socket:
        """Start the proxy command of a route that has one; what Fabric then connects through."""
        self._proxy = Proxy(self._route)
        return self._proxy.socket

    def proxys_last_words(self) -> str | None:
        """What the proxy command said last, if there is one and it has ended."""
        return self._proxy.last_words() if self._proxy else None

    def close(self) -> None:
        """Disconnect, and end the proxy command."""
        super().close()
        if self._proxy:
            self._proxy.close()


def known_keys(route: Route) -> Iterator[paramiko.PKey]:
    """The keys that known_hosts files have for a host: by its address, or by its alias (HostKeyAlias).

    A line that cannot be read is passed over, as OpenSSH does; paramiko would refuse the whole file.
    """
    wanted = route.known_as
    for path in route.known_hosts_files:
        for number, line in enumerate(Path(path).read_text(errors="replace").splitlines(), start=1):
            if any(_is_name_of(wanted, name) for name in line.partition(" ")[0].split(",")):
                with contextlib.suppress(ValueError, SSHException, InvalidHostKey):
                    if (entry := HostKeyEntry.from_line(line, number)) and entry.key:
                        yield entry.key


def _is_name_of(host: str, name: str) -> bool:
    """Whether a name in known_hosts means the host: as it stands, hashed, or as a pattern (sshd(8))."""
    if name.startswith("|1|"):
        with contextlib.suppress(ValueError):
            return paramiko.HostKeys.hash_host(host, name) == name
    # Brackets are part of [host]:port here, not a class of characters.
    return fnmatch.fnmatchcase(host, name.replace("[", "[[]"))


def fingerprint(key: paramiko.PKey) -> str:
    """SHA256:…, as ssh-keygen -l writes it."""
    digest = hashlib.sha256(key.asbytes()).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
