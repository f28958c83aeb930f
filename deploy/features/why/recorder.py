"""Lets each rank record its collectives, so that a hang can be explained (features/why)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...core.connect.cluster import Cluster
from ...core.job.feature import Feature, Start
from ...core.job.planning import rank_programs
from ...core.plan.launch_plan import Contribution


class Recorder(Feature):
    """Gives the ranks the programs of in_rank/ that record."""

    def prepare(self, start: Start, cluster: Cluster) -> Mapping[str, Contribution]:
        """No host is asked for it."""
        added = Contribution(at_start=("muster_start",), in_rank=rank_programs(Path(__file__).parent))
        return dict.fromkeys(cluster.channels, added)
