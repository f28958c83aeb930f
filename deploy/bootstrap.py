"""How a keeper comes to a host: what its Python is given on the command line, and then on its line."""

from __future__ import annotations

import base64
import json
import zlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .node.wire import Readable

# What a keeper is made of.
_MODULES = (
    *("sent", "wire", "facts", "health", "meeting", "store", "processes"),
    *("memory", "ranks", "stacks", "door", "jobs", "detaching", "work"),
    *("commands", "files", "cleaning", "engine", "blobs", "images", "parts", "agent"),
)
GREETING = b"muster keeper is here\n"
# No more of what comes before the greeting is taken in, or kept to be quoted.
MOST_NOISE, KEPT_NOISE = 1 << 20, 1 << 12
# What the host's Python is given as -c, through the login shell there: one line, as in csh a quoted word ends
# with its line. An entry '' of sys.path would let a json.py in the home shadow ours.
BOOTSTRAP = (
    '"muster keeper"; import sys; '
    f'print("\\n{GREETING.decode().strip()}", flush=True); '
    "sys.path[:] = [path for path in sys.path if path]; "
    "import binascii, json, zlib; "
    "sources = json.loads(zlib.decompress(binascii.a2b_base64(sys.stdin.buffer.readline()))); "
    'sent = {"__name__": "muster.deploy.node.sent"}; '
    'exec(sources["muster.deploy.node.sent"], sent); '
    'sent["start"](sources)'
)


class Noise(NamedTuple):
    """What came in place of the greeting: its last line; `endless` if it went on and on."""

    said: str
    endless: bool


@cache
def keeper() -> bytes:
    """What the bootstrap reads: the keeper's modules, as one line that is a third of their size."""
    node = Path(__file__).parent / "node"
    sources = {f"muster.deploy.node.{name}": (node / f"{name}.py").read_text() for name in _MODULES}
    return base64.b64encode(zlib.compress(json.dumps(sources).encode())) + b"\n"


def await_greeting(stream: Readable) -> Noise | None:
    """Read past what a login shell's start-up files print; returns that if no greeting follows."""
    noise, seen = b"", 0
    while seen < MOST_NOISE:
        line = stream.readline(KEPT_NOISE)
        if line == GREETING:
            return None
        noise, seen = (noise + line)[-KEPT_NOISE:], seen + len(line)
        if not line:
            break
    lines = noise.decode(errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return Noise(said[-1] if said else "", endless=seen >= MOST_NOISE)
