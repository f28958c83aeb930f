"""Imports the agent's modules from memory: they come over stdin, and no file is written for them.

The driver's bootstrap (core/connect/bootstrap.py) runs this source, and then `start`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

MAIN = "muster.deploy.core.agent.main"


class SentModules:
    """Finds and loads modules from their sources. A module is compiled when it is imported; most are not."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.sources: dict[str, str] = {}
        self.packages = set[str]()
        self.add(sources)

    def add(self, sources: Mapping[str, str]) -> None:
        """Add modules; not every command needs all of them."""
        self.sources.update(sources)
        for name in sources:
            parts = name.split(".")
            self.packages |= {".".join(parts[:count]) for count in range(1, len(parts))}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The import system calls this on every finder."""
        if name not in self.sources and name not in self.packages:
            return None
        # This object has a loader's methods; the stubs require a subclass of importlib.abc.Loader.
        return ModuleSpec(name, self, is_package=name in self.packages)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None: the import system creates the module itself."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a module's source in the module. The source is the driver's code, and came from the driver."""
        source = self.sources.get(module.__name__, "")  # a package has no source
        exec(compile(source, module.__name__, "exec"), module.__dict__)  # noqa: S102


def start(sources: Mapping[str, str]) -> None:
    """Run the agent until its stdin closes."""
    sys.meta_path.insert(0, SentModules(sources))
    __import__(MAIN)
    sys.modules[MAIN].main()
