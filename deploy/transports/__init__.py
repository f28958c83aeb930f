"""Ways to start a keeper on a host: over SSH, or here."""

from __future__ import annotations

from pathlib import Path

from deploy.channel import Pipe
from deploy.hostfile import Host
from deploy.transports.local import LocalPipe
from deploy.transports.route import resolve
from deploy.transports.ssh import SshPipe


def open_pipe(host: Host, *, python: str | None, ssh_config: Path | None) -> Pipe:
    """Start a keeper on the host; `MusterError` says why it cannot be reached."""
    if host.is_local:
        return LocalPipe(python)
    return SshPipe(resolve(host, ssh_config), python or "python3")
