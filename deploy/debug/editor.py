"""Brings debugpy to a host whose ranks lack it, and makes the entry with which an editor attaches."""

from __future__ import annotations

import io
import json
import zipfile
from importlib.util import find_spec
from pathlib import Path

from ..connect.channel import Channel
from ..connect.requests.consoles import DEBUGGER, StreamOpened
from ..errors import MusterError
from .consoles import require_record
from .forward import LOOPBACK, Forwarder, Target

SEND_SECONDS = 120.0
KINDS = frozenset({".py", ".so"})
WORKSPACE = "${workspaceFolder}"
MISSING = "the ranks have no debugpy ({error}), nor has this machine: pip install debugpy here, or there"
UNUSABLE = "the rank cannot use debugpy: {error}"


def own_debugpy() -> bytes | None:
    """The debugpy of this environment, packed; None without one.

    Its modules of C serve the same Python on the same processor. Others use its modules of Python instead.
    """
    spec = find_spec("debugpy")
    if not (spec and spec.origin):
        return None
    folder, packed = Path(spec.origin).parent, io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted(folder.rglob("*")):
            if path.suffix in KINDS:
                archive.write(path, path.relative_to(folder.parent))
    return packed.getvalue()


def find_debugger(channel: Channel, target: Target, forwarder: Forwarder) -> StreamOpened:
    """Connect to the debugger of a rank, to which debugpy is sent if it lacks it; else `MusterError`."""
    opened, packed = forwarder.watch(), None
    require_record(target.job, [opened.recorded])
    if opened.missing and (packed := own_debugpy()):
        channel.ask(DEBUGGER, packed, seconds=SEND_SECONDS, job=target.job, host=target.host)
        opened = forwarder.watch()
    if not opened.here:
        raise MusterError(f"{target.job}: rank {target.rank} is not running on {target.host}")
    if opened.missing:
        raise MusterError(f"{target.job}: {(UNUSABLE if packed else MISSING).format(error=opened.refused)}")
    if opened.refused:
        raise MusterError(f"{target.job}: rank {target.rank} on {target.host}: {opened.refused}")
    return opened


def launch_entry(target: Target, port: int, root: str, code: str) -> str:
    """An entry of launch.json of Visual Studio Code. `root`, `code`: the files of the job here, and there."""
    entry = {
        "name": f"muster: rank {target.rank} of {target.job}",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": LOOPBACK, "port": port},
        "pathMappings": [{"localRoot": root or WORKSPACE, "remoteRoot": code}],
        "subProcess": False,
    }
    return json.dumps(entry, indent=4)
