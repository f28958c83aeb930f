"""Attempts on imagined hosts, for tests of the loop and of features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from muster.deploy.core.job.events import Emit, Event
from muster.deploy.core.job.feature import Attempt, Feature, Features
from muster.deploy.core.job.run_folder import RunFolder
from muster.deploy.core.job.state import LaunchState
from muster.deploy.core.plan.launch_plan import LaunchPlan
from muster.deploy.core.timings import Timings


def drop(event: Event) -> None:
    """Drop an event."""


def attempt_of(
    plan: LaunchPlan,
    cluster: Any = None,
    emit: Emit = drop,
    features: Features | None = None,
    folder: RunFolder | None = None,
) -> Attempt:
    """An attempt. Its events go to the features, and then to `emit`."""

    def pass_on(event: Event) -> None:
        if features:
            features.tell(Feature.on_event, event)
        emit(event)

    folder = folder or RunFolder(Path("/nowhere"), plan.spec.job)
    return Attempt(plan, cluster, folder, pass_on, LaunchState(plan, pass_on), Timings(), began=1.0)
