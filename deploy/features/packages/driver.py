"""Lets the ranks run in an environment of packages (`--requirements`)."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import PurePosixPath

from ...core.connect.channel import Channel
from ...core.connect.cluster import Cluster
from ...core.connect.fanout import ask_every
from ...core.errors import UnfitError
from ...core.hosts.host_facts import Facts, with_interpreter
from ...core.job.events import Stage
from ...core.job.feature import Feature, Start
from ...core.plan.launch_plan import Contribution
from ...core.waits import with_hosts
from .messages import ENVIRONMENT_HOLD, ENVIRONMENTS, HostEnvironments

SECONDS = 30.0


class Packages(Feature):
    """An environment that every host must have, as for the driver of a detached job.

    `key`: its name. `described`: a line for the plan.
    """

    def __init__(self, key: str = "", described: str = "") -> None:
        self.key, self.described = key, described
        self._asked: dict[str, Future[HostEnvironments]] = {}

    def greet(self, channel: Channel) -> None:
        """Ask a host for its environments while other hosts are still connecting."""
        self._asked[channel.host] = channel.post(ENVIRONMENTS)

    def _environments(self, cluster: Cluster) -> dict[str, HostEnvironments]:
        """The environments of each host."""
        for host in cluster.channels.keys() - self._asked.keys():
            self.greet(cluster.channels[host])
        return {
            host: channel.wait(self._asked.pop(host), SECONDS) for host, channel in cluster.channels.items()
        }

    def provide(self, cluster: Cluster) -> Mapping[str, Facts]:
        """The facts of each host inside its environment; `UnfitError` for hosts without it."""
        held = self._environments(cluster)
        if lacking := [host for host, answer in held.items() if self.key not in answer.environments]:
            raise UnfitError(
                (host, f"its environment {self.key} is gone; launch again to make it") for host in lacking
            )
        return {
            host: with_interpreter(cluster.facts[host], answer.environments[self.key])
            for host, answer in held.items()
        }

    def prepare(self, start: Start, cluster: Cluster) -> Mapping[str, Contribution]:
        """Provide the environment, and keep it from being removed."""
        start.emit(Stage(with_hosts("preparing the packages")))
        with start.timings.part("packages"):
            found = self.provide(cluster)
        if not start.is_dry_run:
            key = {"key": self.key}
            ask_every(cluster.channels, ENVIRONMENT_HOLD, SECONDS, lambda host: key).require_all()
        return {
            host: Contribution(
                facts=facts,
                path=(str(PurePosixPath(facts.executable).parent),),
                about=(f"packages: {self.described}",),
                if_module_is_missing=(
                    "the packages of this launch have no {name}; add its package to the requirements"
                ),
            )
            for host, facts in found.items()
        }
