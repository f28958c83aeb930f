"""Brings an agent to a host: a one-line program for its Python, which reads the modules from stdin."""

from __future__ import annotations

import base64
import json
import re
import shlex
import zlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ..wire.frames import Readable
from ..wire.protocol import AT_START, HANDLERS, NEEDS

DEPLOY = Path(__file__).parents[2]
_IMPORT = re.compile(r"^ *from (\.+)([\w.]*) import \(?([\w, ]*)", re.MULTILINE)
GREETING = b"muster agent is here\n"
_PROCESSES = "no more processes are allowed there: raise nproc (ulimit -u), or its container's pids limit"
_MEMORY = "no memory is left there: end other programs, or raise its limit"
# Python's last message on a host that has too little of something.
_STARVED = {
    "can't start new thread": _PROCESSES,
    "Resource temporarily unavailable": _PROCESSES,
    "Too many open files": "too few open files are allowed there: raise nofile for that login (ulimit -n)",
    "MemoryError": _MEMORY,
    "Cannot allocate memory": _MEMORY,
}
# The most bytes that are read before the greeting, and that are kept to be quoted.
MOST_NOISE, KEPT_NOISE = 1 << 20, 1 << 12
# The program that the host's Python gets as -c, through the login shell there. It is one line: in csh, a
# quoted word ends with its line. An entry '' of sys.path would let a json.py in the home shadow ours.
BOOTSTRAP = (
    '"muster agent"; import sys; '
    f'print("\\n{GREETING.decode().strip()}", flush=True); '
    "sys.path[:] = [path for path in sys.path if path]; "
    "import binascii, json, zlib; "
    "sources = json.loads(zlib.decompress(binascii.a2b_base64(sys.stdin.buffer.readline()))); "
    'sent = {"__name__": "muster.deploy.core.agent.importer"}; '
    'exec(sources["muster.deploy.core.agent.importer"], sent); '
    'sent["start"](sources)'
)


class Noise(NamedTuple):
    """The output in place of the greeting; `endless` if it did not stop."""

    last_line: str
    endless: bool


def _with_imports(modules: Iterable[str]) -> dict[str, str]:
    """The sources of these modules and of all modules of Muster that they import, by full name.

    No handler imports the programs that a job starts: a launch writes them into its folder.
    """
    sources: dict[str, str] = {}
    names = [*modules]
    for name in names:  # the list grows
        path = DEPLOY.joinpath(*name.split(".")).with_suffix(".py")
        if name in sources or not path.is_file():
            continue
        sources[name] = path.read_text()
        for dots, module, members in _IMPORT.findall(sources[name]):
            package = name.split(".")[: -len(dots)]
            base = [*package, *filter(None, [module])]
            names += [".".join(base), *(".".join([*base, one]) for one in members.replace(",", " ").split())]
    return {f"muster.deploy.{name}": text for name, text in sources.items()}


@cache
def early_modules() -> dict[str, str]:
    """The modules that an agent starts with: their source must fit into a pipe (transports/process.py)."""
    return _with_imports(
        ["core.agent.importer", "features.all_handlers", *(handler.module for handler in AT_START)]
    )


@cache
def late_modules(request: str) -> dict[str, str]:
    """The further modules that a request needs: those of its handler, and of the handlers that this needs."""
    handler = HANDLERS[request]
    needed = (HANDLERS[NEEDS[name]] for name in handler.needs.split() if name in NEEDS)
    modules = _with_imports(each.module for each in (handler, *needed))
    return {name: text for name, text in modules.items() if name not in early_modules()}


@cache
def late_source(request: str) -> bytes:
    """These modules, compressed."""
    return zlib.compress(json.dumps(late_modules(request)).encode())


@cache
def agent_source() -> bytes:
    """The agent's modules as the bootstrap reads them: compressed, in one line."""
    return base64.b64encode(zlib.compress(json.dumps(early_modules()).encode(), level=9)) + b"\n"


def is_swallowed(message: str) -> bool:
    """Whether a host's last message shows that something other than the agent read a part of its source."""
    return any(sign in message for sign in ("binascii.Error", "zlib.error", agent_source()[:12].decode()))


def command(python: str) -> str:
    """The command for a host's login shell that starts an agent."""
    return f"{quoted(python)} -c {shlex.quote(BOOTSTRAP)}"


def quoted(path: str) -> str:
    """The path as a word of a shell, which expands `~/`, and nothing else."""
    home = re.match(r"~[A-Za-z0-9._-]*/", path)
    return home[0] + shlex.quote(path[home.end() :]) if home else shlex.quote(path)


def remedy_of(message: str) -> str:
    """The remedy for a host whose agent ended with this message; empty if unknown."""
    return next((remedy for sign, remedy in _STARVED.items() if sign in message), "")


def await_greeting(stream: Readable) -> Noise | None:
    """Read past the output of the login shell's start-up files; returns it if no greeting follows."""
    noise, seen = b"", 0
    while seen < MOST_NOISE:
        line = stream.readline(KEPT_NOISE)
        if line == GREETING:
            return None
        noise, seen = (noise + line)[-KEPT_NOISE:], seen + len(line)
        if not line:
            break
    lines = noise.decode(errors="replace").split("\n")
    printed = [line.strip() for line in lines if line.strip()]
    return Noise(printed[-1] if printed else "", endless=seen >= MOST_NOISE)
