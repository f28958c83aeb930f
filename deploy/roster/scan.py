"""Scans machines over SSH: which answer, their host keys, and their facts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from ..connect.cluster import Cluster
from ..connect.pipe import Pipe
from ..connect.transports.process import LocalPipe
from ..connect.transports.ssh import SshPipe
from ..connect.transports.ssh_config import Route, resolve
from ..errors import HostError, MusterError
from ..hosts.hostfile import Host
from .additions import ScannedHost


def scan(
    hosts: Sequence[Host], config_of: Callable[[str], Path | None], python_of: Callable[[str], str]
) -> dict[str, ScannedHost]:
    """Connect to all hosts at once. `config_of`: the SSH configuration of a host; None for the user's own."""
    routes: dict[str, Route] = {}
    keys: dict[str, str] = {}

    def open_pipe(host: Host) -> Pipe:
        if host.is_local:
            return LocalPipe(python_of(host.name) or None)
        route = routes[host.name] = resolve(host, config_of(host.name))
        pipe = SshPipe(route, python_of(host.name) or "python3")
        keys[host.name] = pipe.host_key
        return pipe

    with contextlib.closing(Cluster(hosts, open_pipe)) as cluster:
        errors = cluster.connect()
        return {
            host.name: ScannedHost(
                _address(routes.get(host.name)),
                keys.get(host.name, ""),
                cluster.facts.get(host.name),
                _of_host(errors[host.name]) if host.name in errors else None,
            )
            for host in hosts
        }


def _address(route: Route | None) -> str:
    if route is None:
        return ""
    return route.hostname if route.port == 22 else f"{route.hostname} port {route.port}"


def _of_host(error: MusterError) -> HostError:
    return error if isinstance(error, HostError) else HostError("host.failed", error.reason)
