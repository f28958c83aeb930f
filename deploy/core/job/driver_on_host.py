"""A driver that runs on a host of its job: its code, the files that it sends, and its signals."""

from __future__ import annotations

import dataclasses
import signal
from dataclasses import dataclass, fields
from pathlib import Path

from .. import interrupts
from ..errors import MusterError
from ..plan.source_tree import Tree, TreeFile, of_package
from ..plan.spec import LaunchSpec
from ..wire.durable import read_intact
from ..wire.store import Store

END_SECONDS = 20.0
"""The limit for the end of a job on all hosts, with its records, after a second signal."""


def own_code() -> Tree:
    """The code of this driver without its commands. It needs only the standard library."""
    return of_package(Path(__file__).parents[2], leave_out=("api", "cli"))


@dataclass(frozen=True)
class StoredTree(Tree):
    """A tree whose contents are in a store of this machine, by their digests.

    The machine of the launch may be unreachable, or its tree may have changed since.
    """

    store: Path = Path()

    def source(self, file: TreeFile) -> Path:
        return Store(self.store).path(file.digest)

    def _content(self, file: TreeFile) -> bytes:
        content = read_intact(self.source(file), file.digest)
        if content is None:
            raise MusterError(
                f"{file.path}: lost or damaged in {self.store} since the job was launched; launch it again"
            )
        return content


def stored(tree: Tree, store: Path) -> StoredTree:
    """The same files, read from the store in this folder."""
    return StoredTree(**{field.name: getattr(tree, field.name) for field in fields(Tree)}, store=store)


def with_store(spec: LaunchSpec, store: Path) -> LaunchSpec:
    """The same request, with its files read from this store."""
    return dataclasses.replace(spec, tree=stored(spec.tree, store), library=stored(spec.library, store))


def end_at_sigterm_alone() -> None:
    """Let SIGTERM interrupt a driver that runs without a terminal: `muster stop` and schedulers send it.

    SIGQUIT does the same, and writes the stacks of its threads into driver.log.
    """
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    interrupts.begin((signal.SIGTERM, signal.SIGQUIT), END_SECONDS)
