"""Lets the ranks of a job find the data sets of their host."""

from __future__ import annotations

from collections.abc import Mapping

from ...core.connect.cluster import Cluster
from ...core.job.feature import Feature, Start
from ...core.plan.launch_plan import Contribution
from ...core.wire.paths import MusterPaths


class DataSets(Feature):
    """Gives the ranks the folder of the data sets as MUSTER_DATA."""

    def prepare(self, start: Start, cluster: Cluster) -> Mapping[str, Contribution]:
        """No host is asked for it."""
        folders = {host: MusterPaths.of_home(facts.home).of("data") for host, facts in cluster.facts.items()}
        return {host: Contribution(env={"MUSTER_DATA": folder}) for host, folder in folders.items()}
