"""How an agent gets to a host: a one-line program for its Python, which reads the modules from stdin."""

from __future__ import annotations

import base64
import json
import re
import shlex
import zlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ..common.frames import Readable

DEPLOY = Path(__file__).parents[1]
ROOMS = ("agent", "common")
# Modules that a launch does not need: an agent gets them before the first request with such a word.
LATE = tuple(
    f"muster.deploy.{name}"
    for name in (
        *(
            "agent.data.",
            "common.data.",
            "common.certificate_name",
            "common.web",
            "agent.image.",
            "agent.transfer.",
            "agent.container.",
        ),
        *("agent.host.health", "agent.host.gpus", "agent.host.drafts"),
        *("agent.job.cleanup", "agent.job.consoles"),
        *("agent.job.arrivals", "agent.job.pressure", "agent.job.unsent"),
        *(f"agent.envs.{module}" for module in ("build", "describe", "environments", "reach", "wheels")),
    )
)
NEED_LATE = (
    *("health", "arrivals", "data_", "image", "env", "wheel_", "console_", "draft", "container", "clean"),
)
# Programs of their own, started by the launcher on the host: a plan writes them into the job's folder.
_JOB = "muster.deploy.agent.job"
PROGRAMS = {
    *(f"{_JOB}.{name}" for name in ("rank", "rank_log", "rsh")),
    *(
        f"{_JOB}.in_rank.{name}"
        for name in (
            *("sitecustomize", "muster_over", "muster_backward", "muster_calls", "muster_recorder"),
            *("muster_console", "muster_debug"),
        )
    ),
    *(f"muster.deploy.agent.container.{name}" for name in ("survey", "keeper", "enter")),
}
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
    'sent = {"__name__": "muster.deploy.agent.importer"}; '
    'exec(sources["muster.deploy.agent.importer"], sent); '
    'sent["start"](sources)'
)


class Noise(NamedTuple):
    """The output in place of the greeting: its last line; `endless` if the output did not stop."""

    said: str
    endless: bool


def modules() -> dict[str, str]:
    """The source of every module that travels, by its name; the importer makes packages from the names."""
    paths = [path for room in ROOMS for path in sorted((DEPLOY / room).rglob("*.py"))]
    named = {
        ".".join(("muster.deploy", *path.relative_to(DEPLOY).with_suffix("").parts)): path for path in paths
    }
    return {
        name: path.read_text()
        for name, path in named.items()
        if name not in PROGRAMS and path.name != "__init__.py"
    }


def _is_late(name: str) -> bool:
    """Whether only some commands need a module: the source of the others must fit into a pipe.

    transports/process.py sets its size.
    """
    return name.startswith(LATE)


@cache
def late_source() -> bytes:
    """The modules that an agent gets when they are first needed."""
    return zlib.compress(
        json.dumps({name: text for name, text in modules().items() if _is_late(name)}).encode()
    )


@cache
def agent_source() -> bytes:
    """The agent's modules as the bootstrap reads them: compressed, in one line."""
    sources = {name: text for name, text in modules().items() if not _is_late(name)}
    return base64.b64encode(zlib.compress(json.dumps(sources).encode(), level=9)) + b"\n"


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
    """What to do about a host whose agent ended with this message; empty if the message does not tell."""
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
