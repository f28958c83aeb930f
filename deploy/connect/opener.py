"""How to connect to a host: by the SSH configuration beside its hosts file, or by the user's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..errors import UsageError
from ..hosts.hostfile import Host
from .ownership import require_own
from .pipe import OpenPipe, Pipe
from .transports.local import LocalPipe
from .transports.openssh import OpenSshPipe
from .transports.ssh_config import resolve

CLIENT = "MUSTER_SSH"
"""The environment variable that names the SSH client."""
CLIENTS = ("paramiko", "openssh")


def config_beside(hosts_file: Path) -> Path | None:
    """The SSH configuration that setup made for these hosts, if there is one.

    `UsageError` if somebody else may have written it: it can name commands, which run as the user.
    """
    return _made(hosts_file.parent / ".muster" / "ssh_config", "SSH configuration can run commands as you")


def pythons_beside(hosts_file: Path) -> Mapping[str, str]:
    """The Python of each host for which setup chose one, from `.muster/pythons`: lines of a host and a path.

    A relative path begins at the host's home folder. `UsageError` if somebody else may have written the file.
    """
    made = _made(hosts_file.parent / ".muster" / "pythons", "it names what runs on the hosts as you")
    text = made.read_text(encoding="utf-8", errors="replace") if made else ""
    pairs = (line.split(maxsplit=1) for line in text.splitlines() if not line.startswith("#"))
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def _made(path: Path, why: str) -> Path | None:
    """A file that setup has made, if it is there and nobody else could have written it."""
    if not path.is_file():
        return None
    require_own((path.parent, path), why)
    return path


def opener(hosts_file: Path, python: str) -> OpenPipe:
    """How to connect to a host: by the SSH configuration beside the hosts file, else by the user's own.

    `python`: the user's choice; without it, the Python that setup chose for the host, else `python3`.
    """
    return opener_with(config_beside(hosts_file), python, pythons_beside(hosts_file))


def opener_with(ssh_config: Path | None, python: str, pythons: Mapping[str, str] | None = None) -> OpenPipe:
    """How to connect to a host by this SSH configuration, or by the user's own."""
    client = os.environ.get(CLIENT) or CLIENTS[0]
    if client not in CLIENTS:
        raise UsageError(f"{CLIENT} is {' or '.join(CLIENTS)}, got {client!r}")

    def open_pipe(host: Host) -> Pipe:
        if host.is_local:
            return LocalPipe(python or None)
        there = python or (pythons or {}).get(host.name, "python3")
        if client == "openssh":
            return OpenSshPipe(host, there, ssh_config=ssh_config)
        # Fabric and paramiko take longer to load than all the rest; the other pipes need neither.
        from .transports.ssh import SshPipe  # noqa: PLC0415

        return SshPipe(resolve(host, ssh_config), there)

    return open_pipe
