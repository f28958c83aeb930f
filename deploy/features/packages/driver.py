"""Lets the ranks run in an environment of packages (`--requirements`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from ...core.connect.channel import Channel
from ...core.connect.cluster import Cluster
from ...core.connect.fanout import ask_every
from ...core.job.events import Stage
from ...core.job.feature import Feature, Start
from ...core.plan.launch_plan import Contribution
from ...core.waits import with_hosts
from .existing_environment import PackageSource
from .messages import ENVIRONMENT_HOLD

HOLD_SECONDS = 30.0


class Packages(Feature):
    """Brings the packages of a launch to its hosts, or requires that they have them."""

    def __init__(self, source: PackageSource) -> None:
        self._source = source

    def greet(self, channel: Channel) -> None:
        """Ask a host for its environments while other hosts are still connecting."""
        self._source.ask(channel)

    def prepare(self, start: Start, cluster: Cluster) -> Mapping[str, Contribution]:
        """Let hosts without the environment make it, unless nothing may change there."""
        start.emit(Stage(with_hosts("preparing the packages")))
        with start.timings.part("packages"):
            found = self._source.provide(cluster)
        if not start.is_dry_run:
            key = {"key": self._source.key}
            ask_every(cluster.channels, ENVIRONMENT_HOLD, HOLD_SECONDS, lambda host: key).require_all()
        return {
            host: Contribution(
                facts=facts,
                path=(str(PurePosixPath(facts.executable).parent),),
                about=(f"packages: {self._source.described}",),
                if_module_is_missing=(
                    "the packages of this launch have no {name}; add its package to the requirements"
                ),
            )
            for host, facts in found.items()
        }
