"""Files of this host, for `fab put` and `fab get`: in parts, checksummed, and put into place whole."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile

from deploy.node.wire import Frame

PART = 1 << 20


class Files:
    """Files by their path, which is relative to the user's home unless it says otherwise."""

    def __init__(self) -> None:
        self._drafts: dict[str, str] = {}
        """What is being received, with where it will be."""

    def do_draft(self, request: Frame, payload: bytes) -> Frame:
        """Begin to receive a file, beside its place; a folder is given it under its own name."""
        target = _path(request["path"])
        if request["path"].endswith("/") or os.path.isdir(target):
            target = os.path.join(target, request["name"])
        os.makedirs(os.path.dirname(target), exist_ok=True)
        descriptor, draft = tempfile.mkstemp(prefix=f".{request['name']}.", dir=os.path.dirname(target))
        os.close(descriptor)
        self._drafts[draft] = target
        return {"draft": draft}

    def do_append(self, request: Frame, payload: bytes) -> Frame:
        """Take in the next part."""
        if request["draft"] not in self._drafts:
            raise ValueError("no such draft")
        with open(request["draft"], "ab") as file:
            file.write(payload)
        return {}

    def do_verify(self, request: Frame, payload: bytes) -> Frame:
        """Whether all of it has arrived as it was."""
        if digest(request["draft"]) != request["digest"]:
            raise OSError("damaged on the way")
        os.chmod(request["draft"], request["mode"])
        return {}

    def do_settle(self, request: Frame, payload: bytes) -> Frame:
        """Put it into place: others see the old file or the new one, nothing between."""
        os.replace(request["draft"], self._drafts.pop(request["draft"]))
        return {}

    def do_file(self, request: Frame, payload: bytes) -> Frame:
        """What a file is: size, mode and SHA-256."""
        path = _path(request["path"])
        status = os.stat(path)
        return {"length": status.st_size, "mode": status.st_mode & 0o777, "digest": digest(path)}

    def do_part(self, request: Frame, payload: bytes) -> Frame:
        """A part of a file."""
        with open(_path(request["path"]), "rb") as file:
            file.seek(request["start"])
            return {"payload": file.read(PART)}

    def close(self) -> None:
        """Forget what was not put into place."""
        while self._drafts:
            with contextlib.suppress(OSError):
                os.unlink(self._drafts.popitem()[0])


def digest(path: str) -> str:
    """The SHA-256 of a file."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(PART):
            found.update(part)
    return found.hexdigest()


def _path(path: str) -> str:
    return os.path.join(os.path.expanduser("~"), os.path.expanduser(path))
