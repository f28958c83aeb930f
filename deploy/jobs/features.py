"""The features of a job, in the order in which they act."""

from __future__ import annotations

from ..envs.present import PackageSource, Present
from ..plan.spec import LaunchSpec
from .feature import Feature, Features
from .leases import Leases


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
    if spec.image:
        from .containers import Containers  # noqa: PLC0415  # most jobs have none

        found.append(Containers(spec))
    return tuple(found)


def features_of(spec: LaunchSpec, *others: Feature, packages: PackageSource | None = None) -> Features:
    """The features of a job with this request. `others` act before them."""
    from .hints import Hints  # noqa: PLC0415  # a dry run needs none of these
    from .kernel_log import KernelMessages  # noqa: PLC0415
    from .left_memory import LeftInMemory  # noqa: PLC0415
    from .memory_kills import MemoryKillsOfHosts  # noqa: PLC0415
    from .metrics import Metrics  # noqa: PLC0415
    from .nested import NestedLaunchers  # noqa: PLC0415
    from .notify import Notify  # noqa: PLC0415
    from .port_conflict import PortConflict  # noqa: PLC0415
    from .preload import Preload  # noqa: PLC0415
    from .returned import ReturnedValues  # noqa: PLC0415
    from .written_files import WrittenFiles  # noqa: PLC0415

    return Features(
        (
            *others,
            *changing(spec, packages),
            PortConflict(),
            Preload(),
            Hints(),
            NestedLaunchers(),
            MemoryKillsOfHosts(),
            LeftInMemory(),
            KernelMessages(),
            WrittenFiles(),
            Metrics(),
            ReturnedValues(),
            Notify(spec),
        )
    )
