"""How to connect to a host: by the SSH configuration beside its hosts file, or by the user's own."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..common.users import name_of
from ..errors import UsageError
from ..hosts.hostfile import Host
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
    if problems := [problem for place in (path.parent, path) for problem in _open_to_others(place, why)]:
        raise UsageError("\n".join(problems))
    return path


def _open_to_others(path: Path, why: str) -> Iterator[str]:
    """Who else may write to a file or folder, and what to do."""
    place, user = shlex.quote(str(path)), os.geteuid()
    if others := {path.lstat().st_uid, path.stat().st_uid} - {user, 0}:
        names = ", ".join(name_of(other) for other in others)
        yield f"{path}: belongs to {names}, and {why}; read it, then: sudo chown -h {name_of(user)} {place}"
    if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield f"{path}: others may write to it, and {why}; do: chmod go-w {place}"


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
