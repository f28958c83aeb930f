"""The options of the features of a job, in one place: a launch takes them, and its request has them."""

from __future__ import annotations

from dataclasses import dataclass

from ..plan.container_options import ContainerOptions
from ..plan.flags import Options
from ..plan.leases import LeaseOptions
from .notify_options import NotifyOptions


@dataclass(frozen=True)
class FeatureOptions(NotifyOptions, LeaseOptions, ContainerOptions):
    """The options of all features: a base for each."""


OPTIONS: tuple[type[Options], ...] = FeatureOptions.__bases__
