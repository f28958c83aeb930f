"""Keeps files, and puts them back: the text of this program, and a call of `main` with a question as JSON."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

File = Mapping[str, Any]
"""Owner, group, mode, and content in base64."""

# The part of /etc/ssh/ssh_known_hosts that is setup's: the other lines belong to the host's owner.
SHARED = "ssh_known_hosts"
BLOCK = re.compile(
    rb"^# BEGIN of the hosts of a Muster cluster\n(.*?)^# END of the hosts of a Muster cluster\n?",
    re.M | re.S,
)


def keep(patterns: Iterable[str]) -> dict[str, File]:
    """Return the files that match shell patterns, by path; of the shared file only setup's part."""
    found: dict[str, File] = {}
    for path in sorted(path for pattern in patterns for path in Path("/").glob(pattern[1:])):
        if path.is_file() and not path.is_symlink():
            status, content = path.stat(), path.read_bytes()
            if path.name == SHARED:
                content = b"".join(block[0] for block in BLOCK.finditer(content))
            if content or path.name != SHARED:
                found[str(path)] = {
                    "owner": [status.st_uid, status.st_gid],
                    "mode": status.st_mode & 0o7777,
                    "content": base64.b64encode(content).decode(),
                }
    return found


def restore(
    patterns: Iterable[str],
    kept: Mapping[str, File],
    actions: Mapping[str, list[str]],
    written: Mapping[str, str],
) -> dict[str, list[str]]:
    """Make the files what they were, and run the commands of those that changed.

    `written`: the digests of what setup writes. A file that is neither this nor what it was before has been
    changed by somebody else: it is left. Returns the paths, `changed` and `left`; ends with a message if some
    could not be written.
    """
    now = keep(patterns)
    differ = sorted(path for path in {*now, *kept} if now.get(path) != kept.get(path))
    left = [path for path in differ if path in written and digest(now.get(path)) not in ("", written[path])]
    changed, failed = [], []
    for path in (path for path in differ if path not in left):
        try:
            put_back(Path(path), kept.get(path))
            changed.append(path)
        except OSError as error:
            failed.append(f"{path}: {error.strerror}")
    done: list[list[str]] = []
    for prefix, command in actions.items():
        if any(path.startswith(prefix) for path in changed) and command not in done:
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            done.append(command)
    if failed:
        sys.exit("not put back: " + ", ".join(failed))
    return {"changed": changed, "left": left}


def digest(file: File | None) -> str:
    """Return the SHA-256 of a file, or of the lines of setup's part; "" if there is none."""
    content = base64.b64decode(file["content"]) if file else b""
    block = BLOCK.fullmatch(content)
    return hashlib.sha256(block[1].strip() if block else content).hexdigest() if content else ""


def put_back(path: Path, file: File | None) -> None:
    """Write a file beside its place, and move it there; remove it if there was none."""
    content = base64.b64decode(file["content"]) if file else b""
    if path.name == SHARED and path.exists():
        status, text = path.stat(), path.read_bytes()
        content = BLOCK.sub(lambda _: content, text) if BLOCK.search(text) else text + content
        file = {"owner": [status.st_uid, status.st_gid], "mode": status.st_mode & 0o7777} if content else None
    if not file:
        path.unlink()
        return
    new = path.with_name(f".{path.name}.muster-undo")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(content)
        os.chown(new, *file["owner"])
        new.chmod(file["mode"])
        new.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            new.unlink()


def main(question: str) -> None:
    """Print the files, or the paths of those that were put back or left, as JSON."""
    asked = json.loads(question)
    kept = asked.get("kept", {}), asked.get("actions", {}), asked.get("written", {})
    answer = keep(asked["keep"]) if "keep" in asked else restore(asked["restore"], *kept)
    json.dump(answer, sys.stdout)
