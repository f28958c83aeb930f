"""The environment of a launch as its hosts have it. The driver of a detached job needs no more than this."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Protocol

from ..connect.channel import Channel
from ..connect.cluster import Cluster
from ..connect.requests.packages import ENVIRONMENTS
from ..errors import UnfitError
from ..hosts.facts import Facts, HostEnvironments, with_interpreter

ENVIRONMENTS_SECONDS = 30.0


class Packages(Protocol):
    """What brings the packages of a launch to its hosts."""

    key: str
    """The name of the environment, once the hosts have it."""
    described: str
    """A line for the plan."""

    def ask(self, channel: Channel) -> None:
        """Ask a host for its environments while other hosts are still connecting."""
        ...

    def provide(self, cluster: Cluster) -> Mapping[str, Facts]:
        """What the launch finds on each host, inside of its environment."""
        ...


class EnvironmentsAsked:
    """The environments of each host: asked early, taken later."""

    def __init__(self) -> None:
        self._asked: dict[str, Future[HostEnvironments]] = {}

    def ask(self, channel: Channel) -> None:
        """Ask a host."""
        self._asked[channel.host] = channel.post(ENVIRONMENTS)

    def of(self, cluster: Cluster) -> dict[str, HostEnvironments]:
        """The environments of every host."""
        there = {}
        for host, channel in cluster.channels.items():
            if host not in self._asked:
                self.ask(channel)
            there[host] = channel.wait(self._asked.pop(host), ENVIRONMENTS_SECONDS)
        return there


class Present(EnvironmentsAsked):
    """An environment that every host must have."""

    def __init__(self, key: str, described: str) -> None:
        super().__init__()
        self.key, self.described = key, described

    def provide(self, cluster: Cluster) -> Mapping[str, Facts]:
        """What the launch finds on each host; `UnfitError` for hosts without the environment."""
        there = self.of(cluster)
        lacking = [host for host, known in there.items() if self.key not in known.environments]
        if lacking:
            raise UnfitError(
                (host, f"its environment {self.key} is gone; launch again, which makes it")
                for host in lacking
            )
        return {
            host: with_interpreter(cluster.facts[host], known.environments[self.key])
            for host, known in there.items()
        }
