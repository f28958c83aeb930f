"""Features of a job: each acts in its turn, and one that raises loses only itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.deploy.core.connect.cluster import Cluster
from muster.deploy.core.errors import MusterError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.rendezvous import ClusterFacts, Rendezvous
from muster.deploy.core.job.events import Event, JobEvent
from muster.deploy.core.job.feature import Feature, Features, Start
from muster.deploy.core.job.planning import make_plan
from muster.deploy.core.job.result import LaunchResult
from muster.deploy.core.plan.launch_plan import Contribution, LaunchPlan
from muster.deploy.core.plan.launcher import place_ranks
from muster.deploy.core.timings import Timings
from tests.unit.plans import NODE
from tests.unit.plans import make_plan as imagined

DONE = LaunchResult(plan=imagined("node1"), started=1.0, ended=2.0, failure=None, ends={})
EVENT = JobEvent(at=1.0, type="rank.printed", job="j", attempt=0)


class Noting(Feature):
    def over(self, result: LaunchResult) -> LaunchResult:
        return dataclasses.replace(result, notes=(*result.notes, "noted"))

    def closed(self, result: LaunchResult) -> str:
        return f"closed with {len(result.notes)} notes"


class Broken(Feature):
    calls = 0

    def on_event(self, event: Event) -> None:
        self.calls += 1
        raise LookupError("no such thing")


def test_a_feature_that_raises_is_named_and_the_others_act() -> None:
    broken, kept = Broken(), dict[str, str]()
    features = Features((broken, Noting()))
    features.tell(Feature.on_event, EVENT)
    features.tell(Feature.on_event, EVENT)
    result = features.over(DONE, kept.__setitem__)
    assert broken.calls == 1
    assert result.notes == (
        "noted",
        "Muster's own error in Broken: LookupError: no such thing (feature-Broken.txt)",
    )
    assert "in on_event" in kept["feature-Broken.txt"]
    assert features.closed(result) == ["closed with 2 notes"]


def test_an_error_that_is_for_the_user_ends_the_job() -> None:
    class Refusing(Feature):
        def on_event(self, event: Event) -> None:
            raise MusterError("not so")

    with pytest.raises(MusterError, match="not so"):
        Features((Refusing(),)).tell(Feature.on_event, EVENT)


def test_a_feature_that_raises_before_the_start_refuses_the_attempt() -> None:
    class Unprepared(Feature):
        def prepare(self, start: Start, cluster: Cluster) -> Mapping[str, Contribution]:
            raise LookupError("no such thing")

        def delivered(self, plan: LaunchPlan, cluster: Cluster) -> None:
            raise LookupError("no such thing")

    features, given = Features((Noting(), Unprepared())), cast(Any, None)
    delivered = partial(features.require, Feature.delivered, given, given)
    for call in (lambda: [*features.prepare(given, given)], delivered):
        with pytest.raises(MusterError, match=r"own error in Unprepared: LookupError.*test_feature.py"):
            call()


def test_the_plan_has_what_features_add_and_each_sees_the_facts_of_those_before_it() -> None:
    class Python(Feature):
        def prepare(self, start: Start, cluster: Cluster) -> Mapping[str, Contribution]:
            facts = dataclasses.replace(cluster.facts["node1"], executable="/opt/python3")
            return {"node1": Contribution(facts=facts, env={"A": "1", "B": "1"}, at_start=("first",))}

    class Variable(Feature):
        def prepare(self, start: Start, cluster: Cluster) -> Mapping[str, Contribution]:
            found = cluster.facts["node1"].executable
            env = {"B": found, "PYTHONUNBUFFERED": "0"}
            return {"node1": Contribution(env=env, about=("about: B",), at_start=("second",))}

    hosts, spec = hostfile.parse("node1"), DONE.plan.spec
    facts = {"node1": NODE}
    cluster: Any = SimpleNamespace(channels={"node1": None}, facts=facts)
    cluster.survey = lambda: ClusterFacts(facts, Rendezvous("127.0.0.1", 20123, {"node1": "lo"}))
    said = list[Event]()
    start = Start(spec, place_ranks(hosts, spec), said.append, Timings())
    plan = make_plan(start, cluster, Features((Python(), Variable())))
    assert {name: plan.hosts[0].env[name] for name in ("A", "B")} == {"A": "1", "B": "/opt/python3"}
    assert plan.hosts[0].env["PYTHONUNBUFFERED"] == "1", "the plan's own variables win"
    assert plan.hosts[0].env["MUSTER_START"] == "first second"
    assert "\nabout: B\n" in str(plan)


def test_a_feature_has_only_the_methods_that_the_class_declares() -> None:
    """A misspelled method would be silently left out."""
    import muster.deploy.cli.prepared_launch  # loads every feature
    import muster.deploy.features.slurm.blame  # noqa: F401

    declared = {name for name in vars(Feature) if not name.startswith("_")}
    declared |= {"provide"}  # the command line calls it before it detaches a job
    found = {
        (kind.__name__, name)
        for kind in Feature.__subclasses__()
        if kind.__module__.startswith("muster.")
        for name in vars(kind)
        if not name.startswith("_") and name not in declared
    }
    assert found == set()
