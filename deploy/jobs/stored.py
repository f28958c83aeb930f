"""The files of a job whose own machine may be unreachable, or whose tree may have changed since."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from ..common.durable import read_intact
from ..common.store import Store
from ..errors import MusterError
from ..plan.source_tree import Tree, TreeFile


@dataclass(frozen=True)
class StoredTree(Tree):
    """A tree whose contents are in a store of this machine, by their digests."""

    store: Path = Path()

    def source(self, file: TreeFile) -> Path:
        """Where the content of a file is."""
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
