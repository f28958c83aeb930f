"""All commands in the order of the help, and the module of each, which is loaded only when needed.

Loading all modules would take most of the time until a command asks the first host.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from .command import Command

FAMILIES: Mapping[str, Mapping[str, str]] = {
    "To begin": {"init": "init", "demo": "practice", "cluster.up": "practice", "cluster.down": "practice"},
    "Jobs": {
        "launch": "launch",
        **dict.fromkeys(("status", "logs", "attach", "stop"), "jobs"),
        **dict.fromkeys(("report", "compare"), "view"),
    },
    "A job that runs": {
        "top": "top",
        "stacks": "stacks",
        "why": "why",
        **dict.fromkeys(("eval", "debug"), "debug"),
    },
    "Hosts": {
        **dict.fromkeys(("hosts.scan", "hosts.add"), "host_list"),
        "check": "check",
        **dict.fromkeys(("setup", "verify", "rotate-keys", "teardown"), "playbooks"),
    },
    "How fast": dict.fromkeys(("bench.links", "bench.collectives", "bench.hosts"), "bench"),
    "Packages": dict.fromkeys(("env.list", "env.remove", "env.diff"), "env"),
    "The node image": dict.fromkeys(("image.build", "image.check", "image.sbom", "image.push"), "image"),
    "On every host": dict.fromkeys(("run", "put", "get", "shell", "clean"), "hosts"),
    "Data sets": dict.fromkeys(("data.push", "data.list", "data.verify", "data.pull", "data.remove"), "data"),
}
"""The families of commands in the help; for each command of a family the module of this package."""

MODULES = {name: module for family in FAMILIES.values() for name, module in family.items()}
"""The module of each command."""


def commands(first: str = "") -> dict[str, Command]:
    """The commands whose name begins with the word `first`, such as image; all commands if there are none."""
    names = [name for name in MODULES if first in {name, name.partition(".")[0]}] or [*MODULES]
    return {name: load(name) for name in names}


def load(name: str) -> Command:
    """A command by its name on the command line: launch, image.build."""
    module = import_module(f".{MODULES[name]}", __package__)
    found: Command = getattr(module, name.rpartition(".")[2].replace("-", "_"))
    return found
