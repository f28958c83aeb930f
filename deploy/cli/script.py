"""The script of a launch: a Python program, or a shell script that starts one."""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path

from ..errors import UsageError
from ..plan.source_tree import Tree
from ..plan.walk import KEYS, RUNS

MAIN = "__main__.py"
_SHELLS = {".sh": "sh", ".bash": "bash", ".zsh": "zsh"}
_FIRST_BYTES = 256
_COMPILED = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"MZ")


def script_of(tree: Tree, place: Path, script: str) -> tuple[str, tuple[str, ...]]:
    """The script's path for the ranks, from the folder of the launch, and what runs it; nothing for Python.

    As for Python, it may be a folder or a zip archive with a `__main__.py`.
    """
    path = (place / script).resolve()
    if not path.exists():
        starts = re.fullmatch(r"(python)[\d.]*|(?:ba|z|da)?sh", script)
        what = "Python" if starts and starts[1] else script
        hint = f"; Muster starts {what} itself: launch SCRIPT ..." if starts else ""
        raise UsageError(f"script {script}: no such file{hint}")
    root = tree.root.resolve()
    if not path.is_relative_to(root):
        raise UsageError(f"script {script}: outside {root}, the tree that a launch sends; move it there")
    if path.is_dir() and not (path / MAIN).is_file():
        raise UsageError(
            f"script {script}: a folder without {MAIN}; name a file in it: launch {Path(script)}/FILE.py"
        )
    sent = path / MAIN if path.is_dir() else path
    if str(sent.relative_to(root)) not in {file.path for file in tree.files}:
        raise UsageError(
            f"script {script}: ignored by git, or in {RUNS}/ or {KEYS}/, so no host would get it; "
            "take it out of .gitignore, or move it"
        )
    named = script if not Path(script).is_absolute() else os.path.relpath(path, place.resolve())
    named = f"./{named}" if named.startswith("-") else named  # Python would take it for an option
    return named, () if path.is_dir() else _runner(path, script)


def _runner(path: Path, script: str) -> tuple[str, ...]:
    """What runs a file that is no Python program, by its first line or its name."""
    try:
        with path.open("rb") as file:
            first = file.read(_FIRST_BYTES)
    except OSError as error:
        raise UsageError(f"script {script}: cannot be read: {error.strerror}") from None
    if first.startswith(_COMPILED):
        raise UsageError(
            f"script {script}: a compiled program; write a script that starts it, run.sh with the line "
            f'exec ./{path.name} "$@", then: launch run.sh'
        )
    if first.startswith(b"#!"):
        words = first[2:].split(b"\n")[0].decode(errors="replace").split(maxsplit=1)
        return () if not words or "python" in " ".join(words) else tuple(word.strip() for word in words)
    if shell := _SHELLS.get(path.suffix):
        return (shell,)
    if first.startswith(b"PK") and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if MAIN not in archive.namelist():
                raise UsageError(f"script {script}: a zip archive without {MAIN}, so Python cannot run it")
    return ()
