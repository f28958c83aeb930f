"""The plan of one attempt, made on hosts that are connected."""

from __future__ import annotations

from pathlib import Path

from ..connect.cluster import Cluster
from ..plan.launch_plan import Contribution, LaunchPlan
from ..plan.planner import RankPrograms, plan
from ..waits import with_hosts
from .events import Stage
from .feature import Features, Start

_AGENT = Path(__file__).parents[2] / "core" / "agent"


def rank_programs(package: Path) -> dict[str, str]:
    """The programs of a package that run in the ranks, each text by its name."""
    paths = sorted((package / "in_rank").glob("*.py"))
    return {path.name: path.read_text() for path in paths if path.name != "__init__.py"}


def tools() -> RankPrograms:
    """The programs of the agent that a job's folder gets, as texts."""
    return RankPrograms(
        rank=(_AGENT / "rank.py").read_text(),
        rsh=(_AGENT / "rsh.py").read_text(),
        in_rank=rank_programs(_AGENT),
    )


def make_plan(start: Start, cluster: Cluster, features: Features) -> LaunchPlan:
    """The plan of an attempt on hosts that are connected, with what its features add."""
    added = dict.fromkeys(cluster.channels, Contribution())
    for contributions in features.prepare(start, cluster):
        for host, more in contributions.items():
            added[host] += more
            cluster.facts[host] = more.facts or cluster.facts[host]
    start.emit(Stage(with_hosts("testing the network")))
    facts = cluster.survey()
    with start.timings.part("plan"):
        return plan(start.spec, start.placement, facts, added, tools())
