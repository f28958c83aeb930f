"""py-spy for the hosts: a program in a single file, which the driver sends to their stores once."""

from __future__ import annotations

import hashlib
import io
import shutil
import sys
import tarfile
from pathlib import Path

from ..connect.channel import Channel
from ..connect.requests.launch import MISSING, STORE


def own_py_spy() -> bytes | None:
    """The py-spy of this environment, if this machine runs Linux as the hosts do."""
    path = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    return Path(path).read_bytes() if path and sys.platform == "linux" else None


def send_py_spy(channel: Channel, tool: bytes | None, seconds: float) -> str | None:
    """Send it to a host that lacks it; returns its digest. A host that has py-spy itself uses that."""
    digest = hashlib.sha256(tool).hexdigest() if tool else None
    if digest and tool and channel.ask(MISSING, digests=[digest], verify=True, seconds=seconds).missing:
        channel.ask(STORE, _archive(digest, tool), seconds=seconds)
    return digest


def _archive(digest: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        member = tarfile.TarInfo(digest)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
