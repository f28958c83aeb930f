"""Features of a job: each acts in its turn, and one that raises loses only itself."""

from __future__ import annotations

import dataclasses

import pytest

from muster.deploy.errors import MusterError
from muster.deploy.jobs.feature import Feature, Features
from muster.deploy.launch.events import Event
from muster.deploy.launch.job_events import JobEvent
from muster.deploy.launch.result import LaunchResult
from tests.unit.plans import make_plan

DONE = LaunchResult(plan=make_plan("node1"), started=1.0, ended=2.0, failure=None, ends={})
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
    features.on_event(EVENT)
    features.on_event(EVENT)
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
        Features((Refusing(),)).on_event(EVENT)


def test_a_feature_has_only_the_methods_that_the_class_declares() -> None:
    """A misspelled method would be silently left out."""
    import muster.deploy.cli.launching  # loads every feature
    import muster.deploy.slurm.blame  # noqa: F401

    declared = {name for name in vars(Feature) if not name.startswith("_")}
    found = {
        (kind.__name__, name)
        for kind in Feature.__subclasses__()
        if kind.__module__.startswith("muster.")
        for name in vars(kind)
        if not name.startswith("_") and name not in declared
    }
    assert found == set()
