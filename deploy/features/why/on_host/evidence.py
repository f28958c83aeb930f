"""Where this host's ranks are: the evidence about a stalled job.

py-spy reads the Python stack of a rank from outside while the rank runs. The evidence adds the process of
each rank in proc(5), the collectives that it has recorded, and its end if it has ended. The driver draws the
conclusion (features/why).

Where Yama restricts ptrace(2) to a process's ancestors, a rank also allows its agent, and what the agent
starts, to read it (rank.py, PR_SET_PTRACER).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ....core.agent.processes import SECONDS_PER_TICK, ProcessStat, peek, read_stat
from ....core.agent.ranks import Ranks
from ....core.agent.supervisor import JobHandler
from ....core.wire.durable import keep_if_intact
from ....core.wire.frames import Frame, read_frame, write_frame
from ....core.wire.paths import JobPaths, MusterPaths
from ....core.wire.store import Store
from ..in_rank.muster_ring import RECORDER
from .records import MOST_ENTRIES, read_ring, read_stack, read_trace

PY_SPY_SECONDS = 8.0
AT_ONCE = 8
MOST_TEXT = 60  # characters of a line of the program
OVER = "_on_shutdown"  # of in_rank/muster_program_end.py
ANSWER_SECONDS = 20.0
MOST_OF_HOST = 12_000  # entries of all ranks: an answer has room for 8 MiB and half a million values
MOST_LOCKS = 1 << 20  # bytes of /proc/locks
MOST_NAME = 100  # characters of a command
MOST_CHILDREN = 4
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.semaphore_tracker")
UNRECORDED = "the job was launched with --no-record"


class RankEvidence:
    """Answers for every job of this host: the job's agent is asked, even if it is this agent itself."""

    def __init__(self, muster_root: Path) -> None:
        self._paths = MusterPaths(str(muster_root))
        self._store = Store(Path(self._paths.store))

    def do_why(self, request: Frame, payload: bytes) -> Frame:
        """The evidence of each rank here; none if the job is not, or no longer, on this host."""
        tool = self._py_spy(request.get("digest"))
        record = Path(self._paths.job(request["job"]).agent(request["host"]))
        try:
            return _ask_agent(record.read_text(), {"hello": "why", "tool": tool})
        except (FileNotFoundError, ConnectionRefusedError):
            return {"ranks": {}}

    def _py_spy(self, digest: str | None) -> str:
        """The host's own py-spy, else the py-spy that the driver has sent."""
        folders = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        installed = shutil.which("py-spy", path=os.pathsep.join(folders))
        if installed or not digest:
            return installed or "py-spy"
        tools = Path(self._paths.root, "tools", digest)
        if not keep_if_intact(tools / "py-spy", digest):
            self._store.check_out([["py-spy", True, digest, None]], tools)
        return str(tools / "py-spy")


class EvidenceOfJob(JobHandler):
    """Answers the agents that ask: only the job's own agent may read its ranks where Yama restricts that."""

    def hello(self, hello: Frame, stream: Any, connection: object) -> None:
        """Send the evidence of the ranks of this host."""
        job = self.job
        paths, more = JobPaths(job.job["folder"]), {"gpus": job.shared.get("gpus", dict)()}
        recorded = "muster_start" in job.job["env"].get("MUSTER_START", "").split()
        folder, tool = str(job.private), hello["tool"]
        evidence = collect(tool, job.ranks, folder, paths.code, recorded=recorded, **more)
        write_frame(stream, {"ranks": evidence})


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


def take_stacks(tool: str, programs: Mapping[int, tuple[int, str]], code: str) -> Frame:
    """For each rank its frames, innermost first, or why there are none.

    `code`: the folder of the user's files; each frame has a mark if it is of such a file.
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
        if threads := json.loads(done.stdout or "[]"):  # none while Python starts
            return {"frames": _main_thread(pid, threads, code)}
    except subprocess.TimeoutExpired:
        return {"error": f"py-spy could not read it within {PY_SPY_SECONDS:.0f} s"}
    except (OSError, ValueError, LookupError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    messages = done.stderr.decode(errors="replace").strip().splitlines()
    return {"error": messages[0] if messages else "py-spy printed no stack"}


def _main_thread(pid: int, threads: list[dict[str, Any]], code: str) -> list[list[Any]]:
    """(function, file, line, own) of the main thread: its thread id is the process id.

    Where the program is over, a thread of it that is in the user's files: it keeps the process alive.
    """
    main = next((thread for thread in threads if thread["os_thread_id"] == pid), threads[0])
    if any(frame["name"].endswith(OVER) for frame in main["frames"]):
        others = (thread for thread in threads if thread is not main and _is_in(thread, code))
        main = next(others, main)
    return [_frame(frame, code) for frame in main["frames"] if frame["filename"] != RECORDER]


def _is_in(thread: dict[str, Any], code: str) -> bool:
    return any(_frame(frame, code)[-1] for frame in thread["frames"])


def _frame(frame: dict[str, Any], code: str) -> list[Any]:
    name, path, line = frame["name"], frame["filename"], frame["line"]
    own = path.startswith(code) or not os.path.isabs(path)
    if own and name == "<module>":  # which says less than the line
        name = _text_of(os.path.join(code, path), line) or name
    return [name, frame["short_filename"] or path, line, own]


def _text_of(path: str, line: int) -> str:
    """The text of a line of a program, in backquotes; empty if it cannot be read."""
    with contextlib.suppress(OSError):
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                text = next(itertools.islice(file, max(0, line - 1), line), "").strip()
                return f"`{text[:MOST_TEXT]}`" if text else ""
    return ""


# -- evidence of a hang --


def collect(
    tool: str, ranks: Ranks, folder: str, code: str, *, recorded: bool, gpus: Mapping[int, list[Frame]]
) -> Frame:
    """The evidence of each rank, by its number. `folder`: the agent's; `code`: that of the user's files.

    `gpus`: those of each rank, as far as they are known.
    """
    programs = ranks.programs()
    before = {rank: (read_stat(pid), time.monotonic()) for rank, (pid, _) in programs.items()}
    taken = take_stacks(tool, programs, code)
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
            collected["process"] = processes[rank]
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
    pids = {rank: pid for rank, (pid, _) in programs.items()}
    below, ranks_of = children(pids), {pid: rank for rank, pid in pids.items()}
    return {
        rank: {
            **_process(pid, state, before[rank]),
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


def file_lock(pid: int, ranks: Mapping[int, int], root: str = "") -> Frame | None:
    """The file for whose lock a process waits, and who has it; None if it waits for none.

    `ranks`: the rank of each process that is one. `root`: a folder with the files of another machine.
    """
    lines = [line.split() for line in peek(f"{root}/proc/locks", MOST_LOCKS).split("\n")]
    waits = next((line for line in lines if line[1:2] == ["->"] and line[5:6] == [str(pid)]), None)
    if waits is None or len(waits) < 7:
        return None
    number, file = waits[0], waits[6]
    held = next(
        (line for line in lines if line[:1] == [number] and line[1:2] != ["->"] and len(line) > 4), []
    )
    holder = int(held[4]) if held and held[4].isdigit() else 0  # 0 or -1: of another container or host
    return {
        "path": _path_of(pid, int(file.rpartition(":")[2]), root),
        "pid": holder,
        "program": _command(holder, root) if holder else "",
        "rank": ranks.get(holder),
    }


def _path_of(pid: int, inode: int, root: str) -> str:
    """The name of a file that a process has open."""
    folder = f"{root}/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:  # it has ended, or is another user's
        return ""
    for name in names:
        with contextlib.suppress(OSError):  # a file that it has just closed
            if os.stat(f"{folder}/{name}").st_ino == inode:
                return os.readlink(f"{folder}/{name}")[-400:]
    return ""


def children(pids: Mapping[int, int], root: str = "") -> dict[int, list[Frame]]:
    """The processes below each rank: their commands, and the ends of those that it has not waited for yet.

    `pids`: the process of each rank.
    """
    ranks = {pid: rank for rank, pid in pids.items()}
    found: dict[int, list[Frame]] = {}
    for pid, parent, code in _all_processes(root):
        rank = ranks.get(parent)
        command = _command(pid, root) if rank is not None else ""
        if rank is not None and not any(helper in command for helper in _HELPERS):
            found.setdefault(rank, []).append({"pid": pid, "program": command, "code": code})
    ended_first = {
        rank: sorted(each, key=lambda child: child["code"] is None) for rank, each in found.items()
    }
    return {rank: each[:MOST_CHILDREN] for rank, each in ended_first.items()}


def _all_processes(root: str) -> Iterator[tuple[int, int, int | None]]:
    """The number of each process, of its parent, and its exit code if it has ended."""
    for name in filter(str.isdigit, os.listdir(f"{root}/proc")):
        fields = peek(f"{root}/proc/{name}/stat", 1024).rpartition(")")[2].split()
        if len(fields) > 1:
            yield int(name), int(fields[1]), _code(fields) if fields[0] == "Z" else None


def _code(fields: list[str]) -> int:
    """The exit code in proc(5): negative for a signal."""
    status = int(fields[49]) if len(fields) > 49 else 0
    return -(status & 0x7F) or status >> 8


def _command(pid: int, root: str) -> str:
    """The words of a command; of a process that has ended, its name."""
    words = peek(f"{root}/proc/{pid}/cmdline", 1024).rstrip("\0").replace("\0", " ")
    return (words or peek(f"{root}/proc/{pid}/comm", 64).strip())[:MOST_NAME]


# -- connections --

RESENT = 2
"""Data that was sent again so often, each time after a longer pause, without an answer, does not move."""
MOST_ADDRESSES = 8
_RESENDS, _LISTENS = "01", "0A"
MOST_TABLE = 1 << 20  # bytes of a table of connections


def connections(pid: int, root: str = "") -> tuple[list[str], list[str]]:
    """The addresses to which a process sends again and again by TCP without an answer; and its own addresses.

    Its own are those of this host, without ports, at which it has connections.
    """
    folder = f"{root}/proc/{pid}"
    sockets = _sockets(f"{folder}/fd")
    tables = [peek(f"{folder}/net/{name}", MOST_TABLE) for name in ("tcp", "tcp6")] if sockets else []
    lines = [line.split() for table in tables for line in table.split("\n")[1:]]
    mine = [fields for fields in lines if len(fields) > 9 and fields[9] in sockets]
    found = {_address(fields[2]) for fields in mine if _is_unanswered(fields)}
    own = {_address(fields[1]).rpartition(":")[0] for fields in mine if fields[3] != _LISTENS}
    return sorted(found)[:MOST_ADDRESSES], sorted(own)[:MOST_ADDRESSES]


def _sockets(folder: str) -> set[str]:
    """The inodes of the sockets among the open files of a process."""
    links = []
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                links.append(os.readlink(f"{folder}/{name}"))
    return {link[8:-1] for link in links if re.fullmatch(r"socket:\[\d+\]", link)}


def _is_unanswered(fields: list[str]) -> bool:
    """Whether a line of /proc/net/tcp is of a connection that gets no answer to what it sends."""
    return fields[5].startswith(_RESENDS) and int(fields[6], 16) >= RESENT


def _address(text: str) -> str:
    """`10.0.0.3:29500` for `0300000A:733C`: each word is in the order of this processor."""
    words, _, port = text.partition(":")
    packed = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    host = socket.inet_ntop(family, packed).removeprefix("::ffff:")
    return f"[{host}]:{int(port, 16)}" if ":" in host else f"{host}:{int(port, 16)}"
