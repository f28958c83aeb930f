"""Folders of a project that each host keeps from one launch to the next (--keep)."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from ..errors import UsageError
from ..text.text import count
from .source_tree import IGNORE_FILE, Tree

PLACEHOLDERS = {".gitkeep", ".gitignore", ".keep"}
"""Files that a tree has in a folder only so that git keeps the folder."""
LONGEST_NAME = 40


def project_key(root: Path) -> str:
    """The name of the kept folders of a project: the name of its folder here, and a digest of the path."""
    name = re.sub(r"[^\w.-]+", "-", root.name, flags=re.ASCII)[:LONGEST_NAME].strip(".-") or "project"
    return f"{name}-{hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:8]}"


def with_kept(tree: Tree, named: Sequence[str]) -> tuple[Tree, tuple[str, ...]]:
    """The tree without placeholders in kept folders, and the paths of these folders below its root.

    `named`: relative to the folder of the launch. `UsageError` for a path outside of it, and for a folder in
    which the tree has files: a host would have to choose between them and its own.
    """
    paths = tuple(dict.fromkeys(_path(tree, name) for name in named))
    for path in paths:
        if inner := next((each for each in paths if each.startswith(f"{path}/")), ""):
            raise UsageError(f"--keep {inner}: {path} is kept already, with all that is in it")
        _require_none(tree, path)
    files = tuple(file for file in tree.files if not any(file.path.startswith(f"{path}/") for path in paths))
    return (replace(tree, files=files) if len(files) < len(tree.files) else tree), paths


def _path(tree: Tree, name: str) -> str:
    path = os.path.normpath(name)
    if path.split("/")[0] in {"", ".", ".."} or not name.isprintable():
        raise UsageError(
            f"--keep {name!r}: write a folder below the one in which the launch starts, as the program names "
            "it: --keep checkpoints"
        )
    return os.path.normpath(PurePosixPath(tree.within, path))


def _require_none(tree: Tree, path: str) -> None:
    """`UsageError` for files of the tree in a kept folder, or in the place of it or of a folder above it."""
    parts = PurePosixPath(path)
    places = {str(parts), *map(str, parts.parents)}
    found = [
        file.path
        for file in tree.files
        if file.path in places
        or (file.path.startswith(f"{path}/") and PurePosixPath(file.path).name not in PLACEHOLDERS)
    ]
    if found:
        raise UsageError(
            f"--keep {path}: the launch sends {count(len(found), 'file')} there ({found[0]}), and each host "
            f"keeps its own; list {path} in {IGNORE_FILE}, or keep another folder"
        )
