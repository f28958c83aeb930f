"""Follows a build of docker buildx: which steps are done, what the running one is, and its whole output.

buildx writes JSON for each change (`--progress=rawjson`, since its version 0.13), which is the SolveStatus of
BuildKit's client; older versions show their own progress instead.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.os_errors import explain
from ..errors import MusterError

RAW = ("--progress", "rawjson")
SINCE = (0, 13)
MOST_STATUS = 1 << 22
MOST_LINES = 40  # of a failed step, on the screen: the log has all
Tell = Callable[[int, int, str], None]
"""Gets the steps that are done, all steps, and the words of the step that runs."""
_STEP = re.compile(r"\[(?:[^\]]* )?\d+/\d+\] ")
"""How the name of a step of the Dockerfile begins: `[node 3/9] RUN ...`."""


@dataclass
class _Vertex:
    name: str
    done: bool = False
    error: str = ""


class Steps:
    """The steps of a build, from the lines that buildx writes."""

    def __init__(self) -> None:
        self._vertices: dict[str, _Vertex] = {}
        self._said: dict[str, str] = {}
        self.doing = ""
        self._open = ""
        """The beginning of a status that goes on."""

    def take(self, line: str) -> str:
        """Note what a line says; returns the text that it adds to the log of the build."""
        if not self._open and not line.startswith("{"):
            return self._take_other(line)
        whole, self._open = self._open + line, ""
        # buildx 0.13 writes a status on many lines, from `{` to `}`.
        over = line.startswith("}") or (line.startswith("{") and line.strip() != "{")
        if not over and len(whole) < MOST_STATUS:
            self._open = whole
            return ""
        try:
            return self._take_status(json.loads(whole))
        except (ValueError, TypeError, AttributeError, KeyError):
            return self._take_other(whole)

    def _take_status(self, status: Mapping[str, Any]) -> str:
        vertices = [self._take_vertex(vertex) for vertex in status.get("vertexes") or ()]
        return "".join([*vertices, *(self._take_output(log) for log in status.get("logs") or ())])

    def _take_other(self, text: str) -> str:
        """Keep what is no status: buildx itself says there what is wrong."""
        self._said[""] = self._said.get("", "") + text
        return text

    @property
    def done(self) -> int:
        """How many steps of the Dockerfile are over."""
        return sum(step.done for step in self._steps())

    @property
    def total(self) -> int:
        """How many steps of the Dockerfile there are, as far as they are known."""
        return len(self._steps())

    @property
    def failure(self) -> str:
        """The end of the output of the step that failed, and its error; else what buildx itself said."""
        for digest, vertex in self._vertices.items():
            if vertex.error and "context canceled" not in vertex.error:
                lines = [vertex.name, *self._said.get(digest, "").splitlines()[-MOST_LINES:], vertex.error]
                return "\n".join(lines)
        return "\n".join(self._said.get("", "").splitlines()[-MOST_LINES:])

    def _steps(self) -> list[_Vertex]:
        return [vertex for vertex in self._vertices.values() if _STEP.match(vertex.name)]

    def _take_vertex(self, said: Mapping[str, Any]) -> str:
        vertex = self._vertices.setdefault(said["digest"], _Vertex(str(said.get("name", ""))))
        before, vertex.error = vertex.done, str(said.get("error", ""))
        vertex.done = bool(said.get("completed")) and not vertex.error
        if said.get("started") and not said.get("completed"):
            self.doing = vertex.name
            return f"{vertex.name}\n"
        if vertex.done and not before:
            return f"{vertex.name}: {'there already' if said.get('cached') else 'done'}\n"
        return f"{vertex.name}: {vertex.error}\n" if vertex.error else ""

    def _take_output(self, log: Mapping[str, Any]) -> str:
        text = base64.b64decode(log["data"]).decode(errors="replace")
        self._said[log["vertex"]] = (self._said.get(log["vertex"], "") + text)[-1 << 16 :]
        return text


def is_followed(version: str) -> bool:
    """Whether a buildx of this version says what it does, from the output of `docker buildx version`."""
    found = re.search(r"\bv?(\d+)\.(\d+)\.\d+", version)
    return found is not None and (int(found[1]), int(found[2])) >= SINCE


def follow(words: Sequence[str], log: Path, tell: Tell) -> str:
    """Run a build, and write what it prints to `log`; returns why it failed, empty if it did not."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with (
            log.open("w") as kept,
            subprocess.Popen([*words, *RAW], stderr=subprocess.PIPE, text=True, errors="replace") as build,
        ):
            steps = Steps()
            for line in build.stderr or ():
                kept.write(steps.take(line))
                kept.flush()
                tell(steps.done, steps.total, steps.doing)
    except OSError as error:
        raise MusterError(f"the build cannot be followed: {explain(error)}") from None
    return steps.failure or f"exit status {build.returncode}" if build.returncode else ""
