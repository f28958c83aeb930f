"""The way to a host: the SSH configuration beside its hosts file, or the user's own."""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from ..errors import UsageError
from ..hosts.hostfile import Host
from .pipe import OpenPipe, Pipe
from .transports.local import LocalPipe
from .transports.ssh_config import resolve


def config_beside(hosts_file: Path) -> Path | None:
    """The SSH configuration that was made for these hosts, if one was.

    `UsageError` if somebody else may have written it: it can name commands, which run as the user.
    """
    made = hosts_file.parent / ".muster" / "ssh_config"
    if not made.is_file():
        return None
    if problems := [problem for path in (made.parent, made) for problem in _open_to_others(path)]:
        raise UsageError("\n".join(problems))
    return made


def _open_to_others(path: Path) -> Iterator[str]:
    """Who else may write to a file or folder, and what to do."""
    why = "SSH configuration can run commands as you"
    place, user = shlex.quote(str(path)), os.geteuid()
    if others := {path.lstat().st_uid, path.stat().st_uid} - {user, 0}:
        names = ", ".join(_name_of(other) for other in others)
        yield f"{path}: belongs to {names}, and {why}; read it, then: sudo chown -h {_name_of(user)} {place}"
    if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield f"{path}: others may write to it, and {why}; do: chmod go-w {place}"


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def opener(hosts_file: Path, python: str) -> OpenPipe:
    """The way to a host: the SSH configuration beside the hosts file if there is one, else the user's own."""
    return opener_with(config_beside(hosts_file), python)


def opener_with(ssh_config: Path | None, python: str) -> OpenPipe:
    """The way to a host by this SSH configuration, or by the user's own."""

    def open_pipe(host: Host) -> Pipe:
        if host.is_local:
            return LocalPipe(python or None)
        # Fabric and paramiko take longer to load than all the rest; what stays on this machine needs neither.
        from .transports.ssh import SshPipe  # noqa: PLC0415

        return SshPipe(resolve(host, ssh_config), python or "python3")

    return open_pipe
