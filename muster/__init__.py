"""Turns machines that you can SSH to into a PyTorch training cluster, and runs training on it.

    from muster import launch, run

    job = launch("train.py", "--epochs", "3", hosts="hosts.txt", np=8)
    values = run(function, argument, hosts="hosts.txt", np=4)

A name is imported when it is first used: `import muster` takes no time. docs/how-to/python.md describes them.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .deploy.api.functions import Job, JobError, JobResult, LaunchError, RankError, launch, run
    from .deploy.core.errors import MusterError, UsageError

# In a checkout, and in a job's copy of one, deploy/ and train/ lie beside this folder, not in it.
_ABOVE = Path(__file__).parents[1]
if (_ABOVE / "train" / "job" / "group.py").is_file():
    __path__.append(str(_ABOVE))

__all__ = [
    "Job",
    "JobError",
    "JobResult",
    "LaunchError",
    "MusterError",
    "RankError",
    "UsageError",
    "launch",
    "run",
]

_PLACES = {
    "Job": "deploy.api.functions",
    "JobError": "deploy.api.functions",
    "JobResult": "deploy.api.functions",
    "LaunchError": "deploy.api.functions",
    "MusterError": "deploy.core.errors",
    "RankError": "deploy.api.functions",
    "UsageError": "deploy.core.errors",
    "launch": "deploy.api.functions",
    "run": "deploy.api.functions",
}


def __getattr__(name: str) -> Any:
    """Import a public name (PEP 562)."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_PLACES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
