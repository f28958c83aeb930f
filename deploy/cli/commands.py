"""Every command, the families in which help shows them, and the module of each, loaded when it is needed.

To load all of them is most of what a command would cost before it asks the first host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from invoke import Collection, Task

FAMILIES: Mapping[str, Sequence[str]] = {
    "To begin": ("init", "demo", "cluster.up", "cluster.down"),
    "Jobs": ("launch", "status", "logs", "attach", "stop", "stacks"),
    "Hosts": ("check", "setup", "verify", "rotate-keys", "teardown"),
    "The node image": ("image.build", "image.check", "image.push"),
    "On every host": ("run", "put", "get", "shell", "clean"),
}
MODULES: Mapping[str, Sequence[str]] = {
    "init": ("init",),
    "practice": ("demo", "cluster"),
    "playbooks": ("setup", "verify", "rotate-keys", "teardown"),
    "check": ("check",),
    "launch": ("launch",),
    "jobs": ("status", "logs", "attach", "stop"),
    "stacks": ("stacks",),
    "image": ("image",),
    "hosts": ("run", "put", "get", "shell", "clean"),
}
"""The modules of this package, and what each holds: commands, or a group of them."""

NAMES = tuple(name for names in MODULES.values() for name in names)


def collection(first: str = "") -> Collection:
    """The commands that may be meant by a line whose first word is `first`: its module's, else all."""
    wanted = [module for module, names in MODULES.items() if first in names] or [*MODULES]
    tasks = (_load(module, name) for module in wanted for name in MODULES[module])
    return Collection(*tasks)


def _load(module: str, name: str) -> Task[Any] | Collection:
    """A command, or a group, by its name on the command line."""
    loaded = import_module(f".{module}", __package__)
    task: Task[Any] | Collection = getattr(loaded, name.replace("-", "_"))
    return task
