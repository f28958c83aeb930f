"""A complete data-parallel training program, and the library that it is made of.

    from muster.train import GlobalBatchSampler, Job, run, synchronise

The program: start reading at demo/main.py. The library: the names below, which keep their meaning within a
major version. A name is imported when it is first used, so that `import muster.train` takes no time and needs
no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checkpoint.checkpoints import Checkpoints
    from .checkpoint.random_numbers import RandomStreams
    from .checkpoint.sharded import ShardedCheckpoints
    from .data.sampler import GlobalBatchSampler
    from .job.failure import TrainError
    from .job.group import Job, process_group
    from .job.preemption import Preemption
    from .job.run import run
    from .mpi_backend import register as register_mpi
    from .replicas import synchronise
    from .reporting.outputs import profile_steps
    from .reporting.steps import StepLog, StepMetrics
    from .training_loop import TrainingLoop

__all__ = [
    "Checkpoints",
    "GlobalBatchSampler",
    "Job",
    "Preemption",
    "RandomStreams",
    "ShardedCheckpoints",
    "StepLog",
    "StepMetrics",
    "TrainError",
    "TrainingLoop",
    "process_group",
    "profile_steps",
    "register_mpi",
    "run",
    "synchronise",
]

# The module of each name, and what it is called there.
_PLACES = {
    "Checkpoints": ("checkpoint.checkpoints", "Checkpoints"),
    "GlobalBatchSampler": ("data.sampler", "GlobalBatchSampler"),
    "Job": ("job.group", "Job"),
    "RandomStreams": ("checkpoint.random_numbers", "RandomStreams"),
    "Preemption": ("job.preemption", "Preemption"),
    "ShardedCheckpoints": ("checkpoint.sharded", "ShardedCheckpoints"),
    "StepLog": ("reporting.steps", "StepLog"),
    "StepMetrics": ("reporting.steps", "StepMetrics"),
    "TrainError": ("job.failure", "TrainError"),
    "TrainingLoop": ("training_loop", "TrainingLoop"),
    "profile_steps": ("reporting.outputs", "profile_steps"),
    "process_group": ("job.group", "process_group"),
    "register_mpi": ("mpi_backend", "register"),
    "run": ("job.run", "run"),
    "synchronise": ("replicas", "synchronise"),
}


def __getattr__(name: str) -> Any:
    """Import a public name (PEP 562)."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[name]
    value = getattr(import_module(f".{module}", __name__), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
