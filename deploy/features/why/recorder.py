"""Lets each rank record its collectives, so that a hang can be explained (features/why)."""

from __future__ import annotations

from collections.abc import Mapping

from ...core.connect.cluster import Cluster
from ...core.job.feature import Feature, Start
from ...core.job.planning import IN_EVERY_RANK, IN_RANK
from ...core.plan.launch_plan import Contribution, RemoteFile
from ...core.wire.paths import JobPaths


class Recorder(Feature):
    """Gives the ranks the programs of agent/job/in_rank that record."""

    def prepare(self, start: Start, cluster: Cluster) -> Mapping[str, Contribution]:
        """No host is asked for it."""
        paths = [path for path in sorted(IN_RANK.glob("muster_*.py")) if path.name not in IN_EVERY_RANK]
        texts = {path.name: path.read_text() for path in paths}

        def added(home: str) -> Contribution:
            folder = f"{JobPaths.of(home, start.spec.job).programs}/in_rank"
            files = (RemoteFile(f"{folder}/{name}", 0o600, text) for name, text in texts.items())
            return Contribution(env={"MUSTER_RECORD": "1"}, files=tuple(files))

        return {host: added(cluster.facts[host].home) for host in cluster.channels}
