"""What every command does alike: options of one meaning, the way to the hosts, and how errors leave."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from fabric import Connection
from invoke import Context, Exit

from ..channel import Pipe
from ..cluster import OpenPipe
from ..console.terminal import harmless_lines
from ..errors import MusterError, UsageError
from ..hosts.hostfile import Host
from ..transports.local import LocalPipe
from ..transports.route import resolve
from ..transports.ssh import SshPipe

HELP = {
    "hosts": "the hosts file (default: hosts.txt)",
    "include": "only these hosts: node[1-3],gpu-a",
    "exclude": "not these hosts",
    "python": "the Python of the hosts (default: python3 there, this one on localhost)",
}


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
        return SshPipe(resolve(host, ssh_config), python or "python3")

    return open_pipe


@contextlib.contextmanager
def explained(context: Context, interrupted: str = "interrupted") -> Iterator[None]:
    """Errors leave as plain lines with their exit status; SIGTERM and SIGHUP are as Ctrl-C is.

    Only the first of them counts: the end that it brings about is bounded in time, and a second one in the
    middle of it must not leave anything behind (as in ompi#8925).
    """
    if isinstance(context, Connection):
        raise Exit("--hosts comes after the task: fab launch --hosts hosts.txt", 2)

    ending = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        if not ending:
            ending = True
            raise KeyboardInterrupt(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
            signal.signal(number, interrupt)
    try:
        yield
    except MusterError as error:
        raise Exit(harmless_lines(str(error)), error.exit_status) from None
    except KeyboardInterrupt as stop:
        raise Exit(interrupted, 128 + (stop.args or (2,))[0]) from None
