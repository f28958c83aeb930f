"""The features of a job, in the order in which they act."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..core.job.feature import AllFeatures, Feature, Features
from ..core.plan.spec import LaunchSpec
from .containers.options import ContainerOptions
from .data.driver import DataSets
from .leases.driver import Leases
from .packages.package_request import PackageOptions
from .preload.options import PreloadOptions
from .slurm.options import AllocationOptions
from .why.options import WhyOptions
from .why.recorder import Recorder

if TYPE_CHECKING:
    from .packages.driver import Packages


def changing(spec: LaunchSpec, packages: Packages | None = None) -> tuple[Feature, ...]:
    """The features that change an attempt: all that a dry run needs.

    `packages`: brings the packages, if the hosts need not have them already.
    """
    found: list[Feature] = []
    is_allocated = bool(spec.of(AllocationOptions).allocation)
    if spec.may_restart:
        from .spares.driver import SpareHosts

        found.append(SpareHosts(seeks_lost=not is_allocated))  # Slurm takes a lost node out
    if not is_allocated:  # Slurm leases the GPUs of its hosts itself
        found.append(Leases())
    found.append(DataSets())
    there = spec.of(PackageOptions)
    if packages is None and there.environment:
        from .packages.driver import Packages

        packages = Packages(there.environment, there.described)
    if packages:
        found.append(packages)
    if spec.of(ContainerOptions).image:
        from .containers.driver import Containers

        found.append(Containers(spec))
    if spec.of(WhyOptions).record:
        found.append(Recorder())
    if spec.of(PreloadOptions).preload:
        from .preload.driver import Preload

        found.append(Preload())
    return tuple(found)


def features_of(spec: LaunchSpec, *others: Feature, packages: Packages | None = None) -> Features:
    """The features of a job with this request. `others` act before them."""
    return Features((*others, *changing(spec, packages), *_tapping(spec)))


def start(program: str, *arguments: str) -> None:
    """Run a driver on a host of its job: `detach.detached_main` or `slurm.batch_main`."""
    from importlib import import_module

    from .all_options import OPTIONS

    import_module(f".{program}", __package__).main(AllFeatures(features_of, OPTIONS), *arguments)


def _tapping(spec: LaunchSpec) -> Iterator[Feature]:
    """The features that tap the course of a job. A dry run loads none of them."""
    from .clean.driver import LeftInMemory
    from .hints.driver import Hints
    from .metrics.driver import Metrics
    from .nested.driver import NestedLaunchers
    from .notify.driver import Notify
    from .returned_values.driver import ReturnedValues
    from .samples.driver import Sampling
    from .samples.starting import Starting
    from .why.diagnosis import Diagnosis
    from .why.kernel import KernelMessages, MemoryKillsOfHosts
    from .why.stall_watch import StallWatch
    from .written_files.driver import WrittenFilesOfHosts

    yield Sampling()
    yield Starting()
    yield StallWatch()
    if spec.of(WhyOptions).record:
        from .why.pace_watch import PaceWatch

        yield PaceWatch()
    yield Diagnosis()
    yield Hints()
    yield NestedLaunchers()
    yield MemoryKillsOfHosts()
    yield LeftInMemory()
    yield KernelMessages()
    yield WrittenFilesOfHosts()
    yield Metrics(shared_home=bool(spec.of(AllocationOptions).allocation))
    yield ReturnedValues()
    yield Notify(spec)
