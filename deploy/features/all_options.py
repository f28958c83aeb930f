"""The options of the features of a job, in one place: a launch takes them, and its request has them."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.plan.flags import Options
from .containers.options import ContainerOptions
from .leases.plan import LeaseOptions
from .notify.options import NotifyOptions
from .packages.package_request import PackageOptions
from .preload.options import PreloadOptions
from .slurm.options import AllocationOptions
from .why.options import WhyOptions


@dataclass(frozen=True)
class FeatureOptions(
    PackageOptions,
    ContainerOptions,
    LeaseOptions,
    PreloadOptions,
    WhyOptions,
    NotifyOptions,
    AllocationOptions,
):
    """The options of all features: a base for each."""


OPTIONS: tuple[type[Options], ...] = FeatureOptions.__bases__
