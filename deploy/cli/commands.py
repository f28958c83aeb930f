"""All commands, their families in the help, and the module of each, which is loaded only when needed.

Loading all modules would take most of the time until a command asks the first host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from invoke import Collection, Task

FAMILIES: Mapping[str, Sequence[str]] = {
    "To begin": ("init", "demo", "cluster.up", "cluster.down"),
    "Jobs": ("launch", "status", "logs", "attach", "stop", "report", "compare"),
    "A job that runs": ("top", "stacks", "why", "eval", "debug"),
    "Hosts": ("hosts.scan", "hosts.add", "check", "setup", "verify", "rotate-keys", "teardown"),
    "How fast": ("bench.links", "bench.collectives", "bench.hosts"),
    "Packages": ("env.list", "env.remove", "env.diff"),
    "The node image": ("image.build", "image.check", "image.sbom", "image.push"),
    "On every host": ("run", "put", "get", "shell", "clean"),
    "Data sets": ("data.push", "data.list", "data.verify", "data.pull", "data.remove"),
}
MODULES: Mapping[str, Sequence[str]] = {
    "init": ("init",),
    "practice": ("demo", "cluster"),
    "playbooks": ("setup", "verify", "rotate-keys", "teardown"),
    "host_list": ("hosts",),
    "check": ("check",),
    "bench": ("bench",),
    "launch": ("launch",),
    "jobs": ("status", "logs", "attach", "stop"),
    "stacks": ("stacks",),
    "view": ("report", "compare"),
    "top": ("top",),
    "why": ("why",),
    "debug": ("eval", "debug"),
    "image": ("image",),
    "env": ("env",),
    "hosts": ("run", "put", "get", "shell", "clean"),
    "data": ("data",),
}
"""The modules of this package, and the commands or the group of commands that each holds."""

NAMES = tuple(name for names in MODULES.values() for name in names)


def collection(first: str = "") -> Collection:
    """The commands of the module that holds the command `first`; all commands if no module holds it."""
    wanted = [module for module, names in MODULES.items() if first in names] or [*MODULES]
    tasks = (_load(module, name) for module in wanted for name in MODULES[module])
    return Collection(*tasks)


def _load(module: str, name: str) -> Task[Any] | Collection:
    """A command, or a group, by its name on the command line."""
    loaded = import_module(f".{module}", __package__)
    task: Task[Any] | Collection = getattr(loaded, name.replace("-", "_"))
    return task
