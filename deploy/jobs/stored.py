"""The files of a job whose own machine may be unreachable, or whose tree may have changed since."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from ..common.store import Store
from ..plan.source_tree import Tree, TreeFile


@dataclass(frozen=True)
class StoredTree(Tree):
    """A tree whose contents are in a store of this machine, by their digests."""

    store: Path = Path()

    def source(self, file: TreeFile) -> Path:
        """Where the content of a file is."""
        return Store(self.store).path(file.digest)


def stored(tree: Tree, store: Path) -> StoredTree:
    """The same files, read from the store in this folder."""
    return StoredTree(**{field.name: getattr(tree, field.name) for field in fields(Tree)}, store=store)
