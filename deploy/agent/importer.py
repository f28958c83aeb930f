"""Imports the agent's modules from memory: they come over its line, and no file is written for them.

The driver's bootstrap (deploy/connect/bootstrap.py) runs this source, and then `start`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

MAIN = "muster.deploy.agent.main"


class Sent:
    """Finds and loads modules by their sources. Each is compiled when it is imported: most are not."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.sources = sources
        self.packages = {name.rpartition(".")[0] for name in sources} | {"muster", "muster.deploy"}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the import system asks of every finder."""
        if name not in self.sources and name not in self.packages:
            return None
        # A loader by its methods alone: the stubs want a subclass of importlib.abc.Loader.
        return ModuleSpec(name, self, is_package=name in self.packages)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """The import system is to make it."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a module's source in it: it came over the line of the driver, whose code it is."""
        source = self.sources.get(module.__name__, "")  # none for a package
        exec(compile(source, module.__name__, "exec"), module.__dict__)  # noqa: S102


def start(sources: Mapping[str, str]) -> None:
    """Be the agent, until its line closes."""
    sys.meta_path.insert(0, Sent(sources))
    __import__(MAIN)
    sys.modules[MAIN].main()
