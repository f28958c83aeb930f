"""The stacks of this host's ranks, and the evidence about a stalled job.

py-spy reads the Python stack of a rank from outside while the rank runs. The evidence of a hang adds the
process of each rank in proc(5), the collectives that it has recorded, and its end if it has ended. The driver
draws the conclusion (deploy/why).

Where Yama restricts ptrace(2) to a process's ancestors, a rank also allows its agent, and what the agent
starts, to read it (rank.py, PR_SET_PTRACER).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ...common.durable import keep_if_intact
from ...common.frames import Frame, read_frame, write_frame
from ...common.paths import MusterPaths
from ...common.store import Store
from ..processes import SECONDS_PER_TICK, ProcessStat, peek, read_stat
from .holders import children, file_lock
from .in_rank.muster_ring import RECORDER
from .pressure import connections
from .ranks import Ranks
from .records import MOST_ENTRIES, read_lock, read_ring, read_stack, read_trace

PY_SPY_SECONDS = 8.0
AT_ONCE = 8
OVER = "_on_shutdown"  # of in_rank/muster_over.py
ANSWER_SECONDS = 20.0
MOST_OF_HOST = 12_000  # entries of all ranks: an answer has room for 8 MiB and half a million values
UNRECORDED = "the job was launched with --no-record"


class RankEvidence:
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
        folders = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        installed = shutil.which("py-spy", path=os.pathsep.join(folders))
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
        raise OSError("the job's agent did not answer")
    return received[0]


def take_stacks(tool: str, programs: Mapping[int, tuple[int, str]], *, code: str = "") -> Frame:
    """For each rank its frames, innermost first, or why there are none.

    With `code`, the folder of the user's files, each frame has a mark if it is of such a file.
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
    return [_frame(frame, code) for frame in main["frames"] if frame["filename"] != RECORDER]


def _is_in(thread: dict[str, Any], code: str) -> bool:
    return any(_frame(frame, code)[-1] for frame in thread["frames"])


def _frame(frame: dict[str, Any], code: str) -> list[Any]:
    shown = [frame["name"], frame["short_filename"] or frame["filename"], frame["line"]]
    if not code:
        return shown
    return [*shown, frame["filename"].startswith(code) or not os.path.isabs(frame["filename"])]


# -- evidence of a hang --


def collect(
    tool: str, ranks: Ranks, folder: str, code: str, *, recorded: bool, gpus: Mapping[int, list[Frame]]
) -> Frame:
    """The evidence of each rank, by its number. `folder`: the agent's; `code`: that of the user's files.

    `gpus`: those of each rank, as far as they are known.
    """
    programs = ranks.programs()
    before = {rank: (read_stat(pid), time.monotonic()) for rank, (pid, _) in programs.items()}
    taken = take_stacks(tool, programs, code=code)
    every = sorted({*programs, *ranks.ends})
    most = max(8, min(MOST_ENTRIES, MOST_OF_HOST // max(1, len(every))))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        traces = {
            rank: pool.submit(read_trace, os.path.join(folder, f"torch-{rank}"), most) for rank in every
        }
        unread = [rank for rank in programs if "error" in taken[str(rank)]]  # for example without py-spy
        answers = {
            rank: pool.submit(read_stack, os.path.join(folder, f"console-{rank}"), code) for rank in unread
        }
        locks = {
            rank: pool.submit(read_lock, os.path.join(folder, f"console-{rank}") if state == "S" else "")
            for rank, (_, state) in programs.items()
        }
    stacks = {rank: answer.result() for rank, answer in answers.items()}
    taken.update({str(rank): {"frames": frames} for rank, frames in stacks.items() if frames})
    processes = _processes(ranks, programs, before)
    evidence = {}
    for rank in every:
        record = {"missing": UNRECORDED}
        if recorded:
            record = read_ring(os.path.join(folder, f"ring-{rank}"), most)
        trace = traces[rank].result()
        collected: Frame = {"now": time.time(), **record, "trace": trace}
        if rank in programs:
            collected["process"] = {**processes[rank], "thread_lock": locks[rank].result()}
            collected.update(taken[str(rank)])
            collected["gpus"] = gpus.get(rank, [])
        elif end := ranks.ends.get(rank):
            collected["end"] = {"code": end["code"], "out_of_memory": "out_of_memory" in end}
        evidence[str(rank)] = collected
    return evidence


def _processes(
    ranks: Ranks,
    programs: Mapping[int, tuple[int, str]],
    before: Mapping[int, tuple[ProcessStat | None, float]],
) -> dict[int, Frame]:
    """The process of each rank, with its children and the file for whose lock it waits."""
    used, pids = ranks.processor_seconds(), {rank: pid for rank, (pid, _) in programs.items()}
    below, ranks_of = children(pids), {pid: rank for rank, pid in pids.items()}
    return {
        rank: {
            **_process(pid, state, before[rank]),
            "ran": used.get(rank, 0.0),
            "file_lock": file_lock(pid, ranks_of),
            "children": below.get(rank, []),
        }
        for rank, (pid, state) in programs.items()
    }


def _process(pid: int, state: str, before: tuple[ProcessStat | None, float]) -> Frame:
    """A process now, with its use of the processor and its page faults since `before`."""
    old, at = before
    now = read_stat(pid) or old
    seconds = max(time.monotonic() - at, 0.001)
    busy = faults = 0.0
    if now and old:
        busy = (now.ticks - old.ticks) * SECONDS_PER_TICK / seconds
        faults = (now.faults - old.faults) / seconds
    unanswered, addresses = connections(pid)
    swapped = re.search(r"^VmSwap:\s*(\d+)", peek(f"/proc/{pid}/status"), re.MULTILINE)
    return {
        "pid": pid,
        "state": state,
        "waits_in": peek(f"/proc/{pid}/wchan", 64),
        "busy": busy,
        "faults": faults,
        "resident": now.memory if now else 0,
        "swapped": int(swapped[1]) << 10 if swapped else 0,
        "threads": now.threads if now else 0,
        "unanswered": unanswered,
        "addresses": addresses,
    }
