"""Keeps files, and puts them back: the text of this program, and a call of `main` with a question as JSON."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

File = Mapping[str, object]
"""Owner, group, mode, and content in base64."""


def keep(patterns: Iterable[str]) -> dict[str, File]:
    """Return the files that match shell patterns, by path."""
    found: dict[str, File] = {}
    for path in sorted(path for pattern in patterns for path in Path("/").glob(pattern[1:])):
        if path.is_file() and not path.is_symlink():
            status = path.stat()
            found[str(path)] = {
                "owner": [status.st_uid, status.st_gid],
                "mode": status.st_mode & 0o7777,
                "content": base64.b64encode(path.read_bytes()).decode(),
            }
    return found


def restore(patterns: Iterable[str], kept: Mapping[str, File], actions: Mapping[str, list[str]]) -> list[str]:
    """Make the files what they were, run the commands of those that changed, and return their paths."""
    now = keep(patterns)
    changed = sorted(path for path in {*now, *kept} if now.get(path) != kept.get(path))
    for path in changed:
        if path in kept:
            write(Path(path), kept[path])
        else:
            Path(path).unlink()
    done: list[list[str]] = []
    for prefix, command in actions.items():
        if any(path.startswith(prefix) for path in changed) and command not in done:
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            done.append(command)
    return changed


def write(path: Path, file: File) -> None:
    """Write a file beside its place, and move it there."""
    new = path.with_name(f".{path.name}.muster-undo")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(base64.b64decode(str(file["content"])))
    os.chown(new, *file["owner"])  # type: ignore[misc]  # two numbers, from JSON
    new.chmod(int(str(file["mode"])))
    new.replace(path)


def main(question: str) -> None:
    """Print the files, or the paths of those that were put back, as JSON."""
    asked = json.loads(question)
    answer = (
        keep(asked["keep"]) if "keep" in asked else restore(asked["restore"], asked["kept"], asked["actions"])
    )
    json.dump(answer, sys.stdout)
