"""The features of a job, in the order in which they act."""

from __future__ import annotations

from ..plan.spec import LaunchSpec
from .feature import Feature, Features
from .hints import Hints
from .kernel_log import KernelMessages
from .left_memory import LeftInMemory
from .memory_kills import MemoryKillsOfHosts
from .nested import NestedLaunchers
from .notify import Notify
from .preload import Preload
from .returned import ReturnedValues


def features_of(spec: LaunchSpec, *others: Feature) -> Features:
    """The features of a job with this request. `others` act before them."""
    return Features(
        (
            *others,
            Preload(),
            Hints(),
            NestedLaunchers(),
            MemoryKillsOfHosts(),
            LeftInMemory(),
            KernelMessages(),
            ReturnedValues(),
            Notify(spec),
        )
    )
