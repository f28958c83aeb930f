"""Hosts on this machine: an agent each, with a home of its own, over pipes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from muster.deploy.core.connect.bootstrap import BOOTSTRAP
from muster.deploy.core.connect.cluster import Cluster
from muster.deploy.core.connect.pipe import LostError, Pipe, why_ended
from muster.deploy.core.connect.transports.process import ProcessPipe
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.hostfile import Host


class HostPipe(ProcessPipe):
    """An agent of this machine with `home` for its user's home. `before`: statements that it runs first."""

    def __init__(self, home: Path, before: str = "") -> None:
        program = f"exec({before!r}); {BOOTSTRAP}" if before else BOOTSTRAP
        super().__init__([*("env", f"HOME={home}", sys.executable, "-c", program)])

    def last_words(self, printed: str = "") -> LostError:
        status, lines = self.end_and_lines()
        return why_ended(status, "\n".join(lines), printed, sys.executable)


class HostsHere:
    """The hosts node1, node2, ..., whose homes are below a folder."""

    def __init__(self, root: Path, count: int) -> None:
        self.root, self.hosts = root, hostfile.parse(f"node[1-{count}]")
        self.pipes: dict[str, HostPipe] = {}
        self.shares: dict[str, str] = {}
        """Hosts that use the home of another."""
        self.lies: dict[str, str] = {}
        """Statements that the agents of some hosts run first."""
        self.wrap: Callable[[str, Pipe], Pipe] = lambda host, pipe: pipe

    def home(self, host: str) -> Path:
        folder = self.root / self.shares.get(host, host)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def open(self, host: Host) -> Pipe:
        self.pipes[host.name] = HostPipe(self.home(host.name), self.lies.get(host.name, ""))
        return self.wrap(host.name, self.pipes[host.name])

    def cluster(self) -> Cluster:
        return Cluster(self.hosts, self.open)

    def data(self, host: str) -> Path:
        return self.home(host) / ".muster" / "data"


def contents(folder: Path) -> dict[str, bytes | str]:
    """Everything in a folder: the bytes of files, the targets of links, and `folder` for empty folders."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = os.fspath(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"link to {path.readlink()}"
        elif path.is_file():
            found[name] = path.read_bytes()
        elif not any(path.iterdir()):
            found[name] = "folder"
    return found
