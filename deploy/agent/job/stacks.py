"""The Python stack of every rank of this host, read from outside by py-spy while the rank runs.

Also asks the job's agent for the evidence of a hang, of which the stacks are a part (evidence.py).

Where Yama restricts ptrace(2) to a process's ancestors, a rank also allows its agent, and what the agent
starts, to read it (rank.py, PR_SET_PTRACER).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ...common.durable import keep_if_intact
from ...common.frames import Frame, read_frame, write_frame
from ...common.paths import MusterPaths
from ...common.store import Store

PY_SPY_SECONDS = 8.0
AT_ONCE = 8
OVER = "_on_shutdown"  # of in_rank/muster_over.py
ANSWER_SECONDS = 20.0


class Stacks:
    """Answers for every job of this host: the job's agent is asked, even if it is this agent itself."""

    def __init__(self, home: Path) -> None:
        self._paths = MusterPaths(str(home))
        self._store = Store(Path(self._paths.store))

    def do_stacks(self, request: Frame, payload: bytes) -> Frame:
        """The stack of each rank here; none if the job is not, or no longer, on this host."""
        return self._ask(request, "stacks", "stacks")

    def do_why(self, request: Frame, payload: bytes) -> Frame:
        """The evidence of each rank here; none if the job is not, or no longer, on this host."""
        return self._ask(request, "why", "ranks")

    def _ask(self, request: Frame, hello: str, answer: str) -> Frame:
        tool = self._py_spy(request.get("digest"))
        record = Path(self._paths.job(request["job"]).agent(request["host"]))
        try:
            return {answer: _ask_agent(record.read_text(), {"hello": hello, "tool": tool})[answer]}
        except (FileNotFoundError, ConnectionRefusedError):
            return {answer: {}}

    def _py_spy(self, digest: str | None) -> str:
        """The host's own py-spy, else the py-spy that the driver has sent."""
        places = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        installed = shutil.which("py-spy", path=os.pathsep.join(places))
        if installed or not digest:
            return installed or "py-spy"
        tools = Path(self._paths.tools, digest)
        if not keep_if_intact(tools / "py-spy", digest):
            self._store.check_out([["py-spy", True, digest, None]], tools)
        return str(tools / "py-spy")


def _ask_agent(folder: str, hello: Frame) -> Frame:
    """Ask the agent that listens in a folder; where Yama restricts that, only it may read its ranks."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(os.path.join(folder, "agent"))
        stream = connection.makefile("rwb")
        write_frame(stream, hello)
        received = read_frame(stream)
    if received is None:
        raise OSError("the job's agent gave no answer")
    return received[0]


def take_stacks(tool: str, programs: Mapping[int, tuple[int, str]], *, code: str = "") -> Frame:
    """For each rank its frames, innermost first, or why there are none.

    With `code`, the folder of the user's files, each frame also says whether it is of such a file.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        taken = {rank: pool.submit(_take, tool, *program, code) for rank, program in programs.items()}
    return {str(rank): stack.result() for rank, stack in taken.items()}


def _take(tool: str, pid: int, state: str, code: str) -> Frame:
    # py-spy pauses a process to read it; it would wait for a process that is stopped, or in the kernel.
    paused = () if state in "RS" else ("--nonblocking",)
    try:
        done = subprocess.run(
            [tool, "dump", "--json", *paused, "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PY_SPY_SECONDS,
            check=False,
        )
        if done.stdout:
            return {"frames": _main_thread(pid, json.loads(done.stdout), code)}
    except subprocess.TimeoutExpired:
        return {"error": f"py-spy could not read it within {PY_SPY_SECONDS:.0f} s"}
    except (OSError, ValueError, KeyError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    messages = done.stderr.decode(errors="replace").strip().splitlines()
    return {"error": messages[0] if messages else "py-spy printed nothing"}


def _main_thread(pid: int, threads: list[dict[str, Any]], code: str) -> list[list[Any]]:
    """(function, file, line) of the main thread: its thread id is the process id.

    Where the program is over, a thread of it that is in the user's files: it keeps the process alive.
    """
    main = next((thread for thread in threads if thread["os_thread_id"] == pid), threads[0])
    if code and any(frame["name"].endswith(OVER) for frame in main["frames"]):
        others = (thread for thread in threads if thread is not main and _is_in(thread, code))
        main = next(others, main)
    return [_frame(frame, code) for frame in main["frames"]]


def _is_in(thread: dict[str, Any], code: str) -> bool:
    return any(_frame(frame, code)[-1] for frame in thread["frames"])


def _frame(frame: dict[str, Any], code: str) -> list[Any]:
    shown = [frame["name"], frame["short_filename"] or frame["filename"], frame["line"]]
    if not code:
        return shown
    return [*shown, frame["filename"].startswith(code) or not os.path.isabs(frame["filename"])]
