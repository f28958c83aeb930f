"""The features of a job, in the order in which they act."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.job.feature import Feature, Features
from ..core.plan.program import CALL
from ..core.plan.spec import LaunchSpec
from .containers.options import ContainerOptions
from .leases.driver import Leases
from .packages.present import PackageSource, Present
from .packages.wanted import PackageOptions
from .preload.options import PreloadOptions
from .why.options import WhyOptions
from .why.recorder import Recorder


def changing(spec: LaunchSpec, packages: PackageSource | None = None) -> tuple[Feature, ...]:
    """The features that change an attempt: all that a dry run needs.

    `packages`: brings the packages, if the hosts need not have them already.
    """
    found: list[Feature] = []
    if spec.may_restart:
        from .spares.driver import SpareHosts  # noqa: PLC0415  # most jobs have none

        found.append(SpareHosts())
    found.append(Leases())
    there = spec.of(PackageOptions)
    if packages is None and there.environment:
        packages = Present(there.environment, there.described)
    if packages:
        from .packages.driver import Packages  # noqa: PLC0415  # most jobs have none

        found.append(Packages(packages))
    if spec.of(ContainerOptions).image:
        from .containers.driver import Containers  # noqa: PLC0415  # most jobs have none

        found.append(Containers(spec))
    if spec.of(WhyOptions).record:
        found.append(Recorder())
    if spec.of(PreloadOptions).preload:
        from .preload.driver import Preload  # noqa: PLC0415  # most jobs have none

        found.append(Preload())
    return tuple(found)


def features_of(spec: LaunchSpec, *others: Feature, packages: PackageSource | None = None) -> Features:
    """The features of a job with this request. `others` act before them."""
    return Features((*others, *changing(spec, packages), *_tapping(spec)))


def _tapping(spec: LaunchSpec) -> Iterator[Feature]:
    """The features that tap the course of a job. A dry run loads none of them."""
    from .hints.driver import Hints  # noqa: PLC0415
    from .kernel.driver import KernelMessages  # noqa: PLC0415
    from .left_memory.driver import LeftInMemory  # noqa: PLC0415
    from .memory_kills.driver import MemoryKillsOfHosts  # noqa: PLC0415
    from .metrics.driver import Metrics  # noqa: PLC0415
    from .nested.driver import NestedLaunchers  # noqa: PLC0415
    from .notify.driver import Notify  # noqa: PLC0415
    from .port_conflict.driver import PortConflict  # noqa: PLC0415
    from .samples.driver import Sampling  # noqa: PLC0415
    from .samples.starting import Starting  # noqa: PLC0415
    from .why.diagnosis import Diagnosis  # noqa: PLC0415
    from .why.stall_notes import StallNotes  # noqa: PLC0415
    from .written_files.driver import WrittenFiles  # noqa: PLC0415

    yield Sampling()
    yield Starting()
    if spec.of(WhyOptions).stall_timeout:
        from .why.stall_timeout import StallTimeout  # noqa: PLC0415

        yield StallTimeout()
    yield StallNotes()
    if spec.of(WhyOptions).record:
        from .why.pace_watch import PaceWatch  # noqa: PLC0415

        yield PaceWatch()
    yield Diagnosis()
    yield PortConflict()
    yield Hints()
    yield NestedLaunchers()
    yield MemoryKillsOfHosts()
    yield LeftInMemory()
    yield KernelMessages()
    yield WrittenFiles()
    yield Metrics()
    if spec.program.module == CALL:
        from .returned_values.driver import ReturnedValues  # noqa: PLC0415

        yield ReturnedValues()
    yield Notify(spec)
