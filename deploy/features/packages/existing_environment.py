"""The environment of a launch that its hosts already have, as for the driver of a detached job."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Protocol

from ...core.connect.channel import Channel
from ...core.connect.cluster import Cluster
from ...core.errors import UnfitError
from ...core.hosts.host_facts import Facts, HostEnvironments, with_interpreter
from .messages import ENVIRONMENTS

ENVIRONMENTS_SECONDS = 30.0


class PackageSource(Protocol):
    """Brings the packages of a launch to its hosts."""

    key: str
    """The name of the environment, once the hosts have it."""
    described: str
    """A line for the plan."""

    def ask(self, channel: Channel) -> None:
        """Ask a host for its environments while other hosts are still connecting."""
        ...

    def provide(self, cluster: Cluster) -> Mapping[str, Facts]:
        """The facts of each host inside its environment."""
        ...


class EnvironmentsAsked:
    """The environments of each host: asked while hosts connect, read once all have connected."""

    def __init__(self) -> None:
        self._asked: dict[str, Future[HostEnvironments]] = {}

    def ask(self, channel: Channel) -> None:
        self._asked[channel.host] = channel.post(ENVIRONMENTS)

    def of(self, cluster: Cluster) -> dict[str, HostEnvironments]:
        for host, channel in cluster.channels.items():
            if host not in self._asked:
                self.ask(channel)
        return {
            host: channel.wait(self._asked.pop(host), ENVIRONMENTS_SECONDS)
            for host, channel in cluster.channels.items()
        }


class Present(EnvironmentsAsked):
    """An environment that every host must have."""

    def __init__(self, key: str, described: str) -> None:
        super().__init__()
        self.key, self.described = key, described

    def provide(self, cluster: Cluster) -> Mapping[str, Facts]:
        """The facts of each host inside its environment; `UnfitError` for hosts without it."""
        held = self.of(cluster)
        lacking = [host for host, answer in held.items() if self.key not in answer.environments]
        if lacking:
            raise UnfitError(
                (host, f"its environment {self.key} is gone; launch again to make it") for host in lacking
            )
        return {
            host: with_interpreter(cluster.facts[host], answer.environments[self.key])
            for host, answer in held.items()
        }
