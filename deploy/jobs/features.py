"""The features of a job, in the order in which they act."""

from __future__ import annotations

from collections.abc import Iterator

from ..envs.present import PackageSource, Present
from ..plan.container_options import ContainerOptions
from ..plan.program import CALL
from ..plan.spec import LaunchSpec
from .feature import Feature, Features
from .leases import Leases
from .recorder import Recorder


def changing(spec: LaunchSpec, packages: PackageSource | None = None) -> tuple[Feature, ...]:
    """The features that change an attempt: all that a dry run needs.

    `packages`: brings the packages, if the hosts need not have them already.
    """
    found: list[Feature] = [Leases()]
    if packages is None and spec.environment:
        packages = Present(spec.environment, spec.packages)
    if packages:
        from .packages import Packages  # noqa: PLC0415  # most jobs have none

        found.append(Packages(packages))
    if spec.of(ContainerOptions).image:
        from .containers import Containers  # noqa: PLC0415  # most jobs have none

        found.append(Containers(spec))
    if spec.record:
        found.append(Recorder())
    if spec.preload:
        from .preload import Preload  # noqa: PLC0415  # most jobs have none

        found.append(Preload())
    return tuple(found)


def features_of(spec: LaunchSpec, *others: Feature, packages: PackageSource | None = None) -> Features:
    """The features of a job with this request. `others` act before them."""
    return Features((*others, *changing(spec, packages), *_tapping(spec)))


def _tapping(spec: LaunchSpec) -> Iterator[Feature]:
    """The features that tap the course of a job. A dry run loads none of them."""
    from .diagnosis import Diagnosis  # noqa: PLC0415
    from .hints import Hints  # noqa: PLC0415
    from .kernel_log import KernelMessages  # noqa: PLC0415
    from .left_memory import LeftInMemory  # noqa: PLC0415
    from .memory_kills import MemoryKillsOfHosts  # noqa: PLC0415
    from .metrics import Metrics  # noqa: PLC0415
    from .nested import NestedLaunchers  # noqa: PLC0415
    from .notify import Notify  # noqa: PLC0415
    from .port_conflict import PortConflict  # noqa: PLC0415
    from .sampling import Sampling  # noqa: PLC0415
    from .stall_notes import StallNotes  # noqa: PLC0415
    from .starting import Starting  # noqa: PLC0415
    from .written_files import WrittenFiles  # noqa: PLC0415

    yield Sampling()
    yield Starting()
    if spec.stall_timeout:
        from .stall_timeout import StallTimeout  # noqa: PLC0415

        yield StallTimeout()
    yield StallNotes()
    if spec.record:
        from .pace_watch import PaceWatch  # noqa: PLC0415

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
        from .returned import ReturnedValues  # noqa: PLC0415

        yield ReturnedValues()
    yield Notify(spec)
