"""Connects to a host by the SSH configuration beside its hosts file, or by the user's own.

`connect_early` does so before a command needs the host: a login takes as long as importing the rest.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from ..decode import AtMost
from ..errors import UsageError
from ..hosts import bounds
from ..hosts.bounds import MOST_HOSTS
from ..hosts.hostfile import Host
from ..timings import Timings
from .bootstrap import agent_source
from .ownership import require_own
from .pipe import OpenPipe, Pipe, send_source
from .transports.process import LocalPipe

CLIENT = "MUSTER_SSH"
"""The environment variable that names the SSH client."""
Client = Literal["paramiko", "openssh"]
CLIENTS: tuple[Client, ...] = ("paramiko", "openssh")
AT_ONCE = 64
# Seconds that a thread runs before another thread has its turn. With Python's 0.005, each message of a login
# waits that long for the main thread, which imports.
TURN_SECONDS, USUAL_TURN_SECONDS = 0.0005, sys.getswitchinterval()
RUNS_COMMANDS = "SSH configuration can run commands as you"


# What a login would set too, or what says how this machine is used.
_OF_THIS_MACHINE = frozenset(
    (
        *("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LD_LIBRARY_PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
        *("XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "DBUS_SESSION_BUS_ADDRESS", "KRB5CCNAME"),
        *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "CUDA_HOME", "CUDA_DEVICE_ORDER"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    )
)


def of_this_machine(shell: Mapping[str, str]) -> dict[str, str]:
    """The environment of an agent here: as over SSH, it gets no other variable of the shell."""
    return {
        name: value
        for name, value in shell.items()
        if name.upper() in _OF_THIS_MACHINE or name.startswith("LC_") or name.endswith("_VISIBLE_DEVICES")
    }


@contextlib.contextmanager
def _without_invoke() -> Iterator[None]:
    """Import paramiko without Invoke, which it needs only to read `Match exec` itself: 45 of 115 ms."""
    hides = not {"paramiko", "invoke"} & sys.modules.keys()
    if hides:
        sys.modules["invoke"] = None  # type: ignore[assignment]  # so an import of it fails
    try:
        yield
    finally:
        if hides:
            del sys.modules["invoke"]


@dataclass(frozen=True)
class Access:
    """The SSH client, configuration and Pythons for hosts. A launch records them for later commands."""

    ssh_config: bounds.AbsolutePath | None = None
    """The SSH configuration beside the hosts file; None for the user's own."""
    client: Client = "paramiko"
    python: bounds.Path = ""
    """The Python of every host, if the user named one."""
    pythons: Annotated[Mapping[bounds.Name, bounds.Path], AtMost(MOST_HOSTS)] = field(default_factory=dict)
    """Otherwise, the Python that setup chose for a host. Other hosts use `python3`."""
    here: bounds.Path = ""
    """The Python of an agent on this machine, if the user named one. That of a record does not count."""

    def open(self, host: Host) -> Pipe:
        """Start an agent on the host."""
        if host.is_local:
            return LocalPipe(self.here or None, of_this_machine(os.environ))
        python = self.python or self.pythons.get(host.name, "python3")
        config = Path(self.ssh_config) if self.ssh_config else None
        from .transports.ssh_config import resolve

        if self.client == "paramiko" and (route := resolve(host, config)).plain:
            with _without_invoke():
                from .transports.ssh import NotLoggedInError, SshPipe
            with contextlib.suppress(NotLoggedInError):
                return SshPipe(route, python)
        from .transports.openssh import OpenSshPipe

        return OpenSshPipe(host, python, ssh_config=config)


def config_beside(hosts_file: Path) -> Path | None:
    """The SSH configuration that setup made for these hosts, if any.

    `UsageError` if another user may have written it: it can name commands, which run as the user.
    """
    return _made(hosts_file.parent / ".muster" / "ssh_config", RUNS_COMMANDS)


def pythons_beside(hosts_file: Path) -> Mapping[str, str]:
    """The Python of each host for which setup chose one, from `.muster/pythons`: lines of a host and a path.

    A relative path begins at the host's home folder. `UsageError` if another user may have written the file.
    """
    made = _made(hosts_file.parent / ".muster" / "pythons", "it names programs that run on the hosts as you")
    text = made.read_text(encoding="utf-8", errors="replace") if made else ""
    pairs = (line.split(maxsplit=1) for line in text.splitlines() if not line.startswith("#"))
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def _made(path: Path, why: str) -> Path | None:
    """A file that this machine has made, if it exists; `UsageError` if others may have written it."""
    if not path.is_file():
        return None
    require_own((path.parent, path), why)
    if path.stat().st_mode & 0o077:  # git gives a file of a clone the mode of the umask
        why = f"others may read it, so it may be of a cloned repository, and {why}"
        raise UsageError(f"{path}: {why}; read it, then: chmod go= {shlex.quote(str(path))}")
    return path


def access_beside(hosts_file: Path, python: str, here: str = "") -> Access:
    """The access to the hosts of a file: by the SSH configuration beside it, else by the user's own.

    `python`, `here`: the user's choice; without it, the Python that setup chose for the host, else `python3`.
    """
    return replace(access_with(config_beside(hosts_file), python, here), pythons=pythons_beside(hosts_file))


def access_with(ssh_config: Path | None, python: str, here: str = "") -> Access:
    """The access to hosts by this SSH configuration, or by the user's own."""
    named = os.environ.get(CLIENT) or CLIENTS[0]
    client = next((client for client in CLIENTS if client == named), None)
    if client is None:
        raise UsageError(f"{CLIENT} is {' or '.join(CLIENTS)}, got {named!r}")
    return Access(str(ssh_config.absolute()) if ssh_config else None, client, python, here=here)


def require_usable(access: Access) -> None:
    """`UsageError` if the SSH configuration of a record is gone, or may be written by others."""
    if access.ssh_config and not _made(Path(access.ssh_config), RUNS_COMMANDS):
        raise UsageError(f"{access.ssh_config}: the SSH configuration of the launch is gone; put it back")


def connect_early(hosts: Sequence[Host], open_pipe: OpenPipe, timings: Timings) -> OpenPipe:
    """Begin to open a pipe to each of these hosts; returns a function that returns each pipe once.

    A second call for a host opens a new pipe. An error of a login is raised by the call for that host. A pipe
    may be left unused: the threads keep no process alive, and the agent behind a pipe ends with this process.
    """
    sys.setswitchinterval(TURN_SECONDS)
    begun: dict[str, Future[Pipe]] = {host.name: Future() for host in hosts}
    waiting = deque((host, begun[host.name]) for host in hosts)

    def opened(host: Host) -> Pipe:
        with timings.part("connection", host.name):
            send_source(pipe := open_pipe(host))  # so that the agent starts meanwhile
            return pipe

    def work() -> None:
        while True:
            try:
                host, future = waiting.popleft()
            except IndexError:
                sys.setswitchinterval(USUAL_TURN_SECONDS)
                return
            try:
                future.set_result(opened(host))
            except BaseException as error:  # noqa: BLE001  # it is raised where the pipe is asked for
                future.set_exception(error)

    for _ in range(min(len(hosts), AT_ONCE)):
        threading.Thread(target=work, daemon=True).start()
    agent_source()  # made once, before many threads would make it at once

    def take(host: Host) -> Pipe:
        future = begun.pop(host.name, None)
        return future.result() if future else opened(host)

    return take
