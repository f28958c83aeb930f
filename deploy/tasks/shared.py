"""What every command does alike: options of one meaning, the way to the hosts, and how errors leave."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from fabric import Connection
from invoke import Context, Exit

from deploy.cluster import Cluster
from deploy.errors import MusterError
from deploy.hostfile import Host
from deploy.transports import open_pipe

HELP = {
    "hosts": "the hosts file (default: hosts.txt)",
    "include": "only these hosts: node[1-3],gpu-a",
    "exclude": "not these hosts",
    "python": "the Python of the hosts (default: python3 there, this one on localhost)",
}


def cluster_of(hosts: tuple[Host, ...], hosts_file: Path, python: str) -> Cluster:
    """The hosts, by the SSH configuration made for them beside the hosts file, else by the user's own."""
    made = hosts_file.parent / ".muster" / "ssh_config"
    ssh_config = made if made.is_file() else None
    return Cluster(hosts, lambda host: open_pipe(host, python=python or None, ssh_config=ssh_config))


@contextlib.contextmanager
def explained(context: Context) -> Iterator[None]:
    """Errors leave as plain lines with their exit status; SIGTERM and SIGHUP stop the job as Ctrl-C does."""
    if isinstance(context, Connection):
        raise Exit("--hosts comes after the task: fab launch --hosts hosts.txt", 2)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
            signal.signal(number, interrupt)
    try:
        yield
    except MusterError as error:
        raise Exit(str(error), error.exit_status) from None
    except KeyboardInterrupt as stop:
        raise Exit("interrupted; the job is ended on every host", 128 + (stop.args or (2,))[0]) from None
