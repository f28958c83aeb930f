"""The options of the features of a job, in one place: a launch takes them, and its request has them."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.plan.flags import Options
from .containers.options import ContainerOptions
from .leases.plan import LeaseOptions
from .notify.options import NotifyOptions


@dataclass(frozen=True)
class FeatureOptions(NotifyOptions, LeaseOptions, ContainerOptions):
    """The options of all features: a base for each."""


OPTIONS: tuple[type[Options], ...] = FeatureOptions.__bases__
