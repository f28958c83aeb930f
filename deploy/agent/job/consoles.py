"""Asks ranks of this host through their consoles (in_rank/muster_console.py): all, or one in a dialog.

The sockets lie in the private folder of the job's agent, named after their ranks. A rank's answer is input of
the user's program, which is not trusted: every size is bounded.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ...common.frames import Frame
from ...common.paths import JobPaths, MusterPaths
from .records import CONNECT_SECONDS, MOST_ANSWER, ask_console, connect_to

AT_ONCE = 64
GRACE_SECONDS = 2.0  # beyond the time limit of the expression: the rank interrupts it and reports that
NOT_AN_ANSWER = "protocol error: not an answer of a console"
MOST_TEXT = 1 << 14
MOST_ANSWERS = 1 << 21  # characters from all ranks of a host: they come in one line
LEAST_TEXT = 200
SILENT = "it does not answer: it is stopped, or in a function of C that lets no other thread of Python run"


class Consoles:
    """Answers for every job of this host, except those with `--no-record`."""

    def __init__(self, home: Path) -> None:
        self._paths = MusterPaths(str(home))
        self._conversation: _Conversation | None = None

    def close(self) -> None:
        """Close the open console, if any; its rank continues."""
        if self._conversation:
            self._conversation.close()

    def do_console_eval(self, request: Frame, payload: bytes) -> Frame:
        """The value of an expression in each rank; none if the job is not on this host, or has ended."""
        paths = self._paths.job(request["job"])
        sockets = _sockets(paths, request["host"])
        if request["only"] is not None:
            sockets = {rank: path for rank, path in sockets.items() if rank == request["only"]}
        seconds = float(request["seconds"])
        question = {"do": "eval", "expression": request["expression"], "seconds": seconds, "code": paths.code}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            pending = {rank: pool.submit(_ask, path, question, seconds) for rank, path in sockets.items()}
        room = max(LEAST_TEXT, min(MOST_TEXT, MOST_ANSWERS // max(1, len(pending))))
        answers = {str(rank): answer for rank, future in pending.items() if (answer := future.result())}
        return {
            "recorded": is_recorded(paths),
            "ranks": {
                rank: {name: text[:room] for name, text in answer.items()} for rank, answer in answers.items()
            },
        }

    def do_console_open(self, request: Frame, payload: bytes) -> Frame:
        """Open the console of a rank; `here` is false if it is not on this host."""
        paths = self._paths.job(request["job"])
        path = _sockets(paths, request["host"]).get(request["rank"])
        opened = {"recorded": is_recorded(paths), "here": path is not None}
        if path is None:
            return opened
        try:
            self._conversation = _Conversation(
                path, {"do": "debug", "hold": request["hold"], "code": paths.code}
            )
        except (FileNotFoundError, ConnectionRefusedError):
            return {**opened, "here": False}
        return opened

    def do_console_say(self, request: Frame, payload: bytes) -> Frame:
        """Send the rank a line, if any; answers its output of at most so many seconds."""
        if self._conversation is None:
            raise ValueError("no console is open")
        if "line" in request:
            self._conversation.write(request["line"])
        return self._conversation.read(request["hear"])


def is_recorded(paths: JobPaths) -> bool:
    """Whether the ranks of a job have consoles."""
    return Path(paths.programs, "in_rank", "muster_console.py").exists()


def _sockets(paths: JobPaths, host: str) -> dict[int, str]:
    """The console of each rank of a job on this host."""
    try:
        folder = Path(paths.agent(host)).read_text()
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    matches = [match for match in map(re.compile(r"console-(\d{1,7})").fullmatch, names) if match]
    return {int(match[1]): os.path.join(folder, match[0]) for match in matches}


def _ask(path: str, question: Frame, seconds: float) -> dict[str, str] | None:
    """The answer of a rank; None if the rank is gone."""
    try:
        answer = ask_console(path, question, seconds + GRACE_SECONDS)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except OSError:  # a time-out is one too
        return {"error": SILENT}
    except (ValueError, RecursionError):
        return {"error": NOT_AN_ANSWER}
    if not isinstance(answer, dict):
        return {"error": NOT_AN_ANSWER}
    texts = {name: text for name in ("at", "value", "error") if isinstance(text := answer.get(name), str)}
    return texts if "value" in texts or "error" in texts else {"error": NOT_AN_ANSWER}


def decoded(line: bytes) -> dict[str, Any]:
    """An object of JSON; an empty one for anything else."""
    with contextlib.suppress(ValueError, RecursionError):
        decoded = json.loads(line)
        return decoded if isinstance(decoded, dict) else {}
    return {}


class _Conversation:
    """A console or debugger of one rank, until one side closes it."""

    def __init__(self, path: str, request: Frame) -> None:
        self._connection = connect_to(path)
        self._pending = b""
        self._send(request)

    def close(self) -> None:
        """Close the connection; the rank notices."""
        self._connection.close()

    def write(self, line: str) -> None:
        """Send the line that the rank waits for."""
        with contextlib.suppress(OSError):  # `read` notices
            self._send({"line": line})

    def read(self, seconds: float) -> Frame:
        """The rank's output until it waits for a line, has closed, has written much, or time is over."""
        deadline, text = time.monotonic() + seconds, ""
        while len(text) < MOST_TEXT:
            line = self._line(deadline)
            if line is None:
                return {"text": text}
            if not line:
                return {"text": text, "over": True}
            frame = decoded(line)
            text += str(frame.get("text", ""))[: 2 * MOST_TEXT]
            if "ask" in frame:
                return {"text": text, "ask": str(frame["ask"])[:LEAST_TEXT]}
        return {"text": text}

    def _line(self, deadline: float) -> bytes | None:
        """The next line; an empty one at the end, None if none comes in time."""
        while b"\n" not in self._pending:
            try:
                self._connection.settimeout(max(0.001, deadline - time.monotonic()))
                part = self._connection.recv(1 << 16)
            except socket.timeout:  # TimeoutError only from Python 3.10 on
                return None
            except OSError:
                return b""
            if not part or len(self._pending) > MOST_ANSWER:
                return b""
            self._pending += part
        line, _, self._pending = self._pending.partition(b"\n")
        return line + b"\n"

    def _send(self, frame: Frame) -> None:
        self._connection.settimeout(CONNECT_SECONDS)
        self._connection.sendall(json.dumps(frame).encode() + b"\n")
