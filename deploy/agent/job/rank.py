"""Wraps one rank: keeps its output and its end, and works the same under mpirun, torchrun and srun.

Usage: ``rank.py ARG ...`` runs ``python ARG ...`` with its own Python. A launcher starts it below the host's
agent (srun: below Slurm's daemon) as ``muster-rank``, found on PATH: the right file on every host. The
output goes byte for byte to ``logs/rank-0007@node2.{out,err}`` on this host, and line by line to the agent;
the end, with the last lines and the time, to ``logs/rank-0007@node2.json``. Exits as the program does
(128 + n for signal n).
Standard library only, run by ``python -IS``: every rank pays for its imports. Once the program runs, nothing
is imported and no codec is looked up, as by `open` for text: Python may have been replaced by then.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import io
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from queue import SimpleQueue
from typing import Any, BinaryIO

PR_SET_PDEATHSIG, PR_SET_PTRACER = 1, 0x59616D61  # prctl(2)
TAIL_LINES, TAIL_WIDTH = 40, 2048  # the log has every line in full
LONGEST_LINE = 1 << 16  # a longer line is passed on in pieces
LEFT_BEHIND_SECONDS = 1.0  # for what a program's own children print after its end
LAST_SECONDS = 10.0  # then, to pass on what there is; those children may print for ever
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def place(environment: Mapping[str, str]) -> dict[str, int]:
    """Which rank this is. torchrun's variables come first: its workers inherit what an outer mpirun set."""
    if "MUSTER_STEP" in environment:
        return place_in_step(environment)
    if "TORCHELASTIC_RUN_ID" in environment:
        prefix, size = "", "WORLD_SIZE"
    else:
        prefix, size = "OMPI_COMM_WORLD_", "SIZE"
    return {
        "rank": int(environment[f"{prefix}RANK"]),
        "local_rank": int(environment[f"{prefix}LOCAL_RANK"]),
        "world_size": int(environment[f"{prefix}{size}"]),
        "local_world_size": int(environment[f"{prefix}LOCAL_{size}"]),
    }


def place_in_step(environment: Mapping[str, str]) -> dict[str, int]:
    """Which rank this is of a step of Slurm (srun(1), OUTPUT ENVIRONMENT VARIABLES)."""
    counts: list[int] = []
    for part in environment["SLURM_STEP_TASKS_PER_NODE"].split(","):  # 2(x3),1
        count, _, times = part.partition("(x")
        counts += [int(count)] * int(times.rstrip(")") or 1)
    return {
        "rank": int(environment["SLURM_PROCID"]),
        "local_rank": int(environment["SLURM_LOCALID"]),
        "world_size": int(environment["SLURM_STEP_NUM_TASKS"]),
        "local_world_size": counts[int(environment["SLURM_NODEID"])],
    }


def find_agent() -> None:
    """In a step of Slurm, whose environment is the head's everywhere, name the agent of this host."""
    host = os.environ["SLURMD_NODENAME"]
    with open(os.path.join(os.environ["MUSTER_STEP"], f"agent.{host}"), encoding="utf-8") as file:
        os.environ["MUSTER_AGENT"] = os.environ["TMPDIR"] = file.read()


class Agent:
    """The connection to this host's agent; this rank ends with it."""

    def __init__(self, hello: dict[str, Any]) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(os.path.join(os.environ["MUSTER_AGENT"], "agent"))
        # struct ucred, unix(7): who listens there
        peer = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid: int = struct.unpack("3i", peer)[0]
        self._stream = self._socket.makefile("rwb")
        self._lock = threading.Lock()
        self.send(hello)
        self.job: dict[str, Any] = json.loads(self._stream.readline())

    def send(self, frame: dict[str, Any]) -> None:
        """Send one JSON line; `listen` notices when the agent is gone."""
        with self._lock, contextlib.suppress(OSError):
            self._stream.write(json.dumps(frame).encode() + b"\n")
            self._stream.flush()

    def listen(self, take: Callable[[bytes], object]) -> None:
        """Pass on each part of the program's standard input, until the agent is gone."""
        with contextlib.suppress(OSError, ValueError):
            while line := self._stream.readline():
                take(self._stream.read(json.loads(line).get("size", 0)))


def environment_of(job: Mapping[str, Any], ranks: Mapping[str, int]) -> dict[str, str]:
    """The program's environment: the plan's, and torchrun's names for programs that know only those."""
    names = {name.upper(): str(value) for name, value in ranks.items()}
    environment = {**os.environ, **names, **job["env"]}
    # `import muster.train` works in every rank. Our library comes last: it must not hide the user's modules.
    # Only our sitecustomize comes first; it runs the user's, and removes its folder from the path.
    hook = os.path.join(os.path.dirname(os.path.abspath(__file__)), "in_rank")
    paths = [hook, environment.get("PYTHONPATH", ""), os.path.join(job["folder"], "lib")]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def prepare_child(agent: int) -> None:
    """In the child, before exec: have the kernel kill it when this wrapper ends for whatever reason.

    Also let the agent, and what it starts, read the child's stack where Yama restricts that (`fab stacks`).
    """
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(PR_SET_PTRACER, agent, 0, 0, 0)  # fails without Yama, where it is not needed


class Log:
    """A log file on this host, which may end early.

    A full disk must not stop the reading of the program's pipe: the program would wait for room in it. What
    no longer fits here still reaches the driver, and the driver is told why this file ends early.
    """

    def __init__(self, path: str, agent: Agent) -> None:
        self._path, self._agent = path, agent
        self._file: io.FileIO | None = None
        with self._errors():
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115  # as long as the rank

    def write(self, content: bytes) -> None:
        """Append. A disk that is nearly full takes a part of the content before it gives an error."""
        with self._errors():
            while content and self._file:
                content = content[self._file.write(content) :]

    def close(self) -> None:
        """Close the file; some network file systems report only now that the quota is used up."""
        file, self._file = self._file, None
        if file:
            with self._errors():
                file.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._file = None
            self._agent.send({"event": "log-ended", "path": self._path, "errno": error.errno})


def pump(
    source: BinaryIO, path: str, name: str, agent: Agent, tail: collections.deque[str], *, over: int
) -> None:
    r"""Copy a stream to its file byte for byte, and to the agent in whole lines (ended by \n or \r)."""
    pending = b""
    with contextlib.closing(Log(path, agent)) as log:
        for chunk in chunks(source, over):
            log.write(chunk)
            whole, pending = whole_lines(pending + chunk, flush=not chunk)
            if whole:
                text = whole.decode(errors="surrogateescape")
                tail.extend(line[-TAIL_WIDTH:] for line in text.splitlines(keepends=True)[-TAIL_LINES:])
                agent.send({"event": "output", "stream": name, "text": text})


def chunks(source: BinaryIO, over: int) -> Iterator[bytes]:
    """The chunks of a stream as they come, and one empty chunk at the end.

    `over` can be read once the program has ended. Its output is in the pipe by then, but its children may
    hold the stream open for ever.
    """
    stream, until, chunk = source.fileno(), 0.0, b"begin"
    while chunk:
        ready, _, _ = select.select([stream, over], [], [])
        if stream not in ready:
            until = until or time.monotonic() + LEFT_BEHIND_SECONDS
            ready, _, _ = select.select([stream], [], [], max(0.0, until - time.monotonic()))
        chunk = os.read(stream, 1 << 16) if ready else b""
        yield chunk


def feed(parts: SimpleQueue[bytes], program: BinaryIO, agent: Agent) -> None:
    """Write each part to the program's standard input, and report when the program has taken it."""
    with contextlib.suppress(OSError):  # the program reads no more, or has ended
        while part := parts.get():
            program.write(part)
            program.flush()
            agent.send({"event": "stdin", "still_read": True})
    with contextlib.suppress(OSError):
        program.close()
    agent.send({"event": "stdin", "still_read": False})


def whole_lines(text: bytes, *, flush: bool) -> tuple[bytes, bytes]:
    """Split into whole lines and a rest; at the end, or if the rest is too long, the rest goes along."""
    end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
    if flush or len(text) - end > LONGEST_LINE:
        end = len(text)
    return text[:end], text[end:]


def run(argv: list[str]) -> int:
    """Run Python with these arguments to its end; returns its exit code, negative for a signal."""
    ranks = place(os.environ)
    if "MUSTER_STEP" in os.environ:
        find_agent()
    agent = Agent({"hello": "rank", "pid": os.getpid(), **ranks})
    attempt = f".restart-{agent.job['attempt']}" if agent.job.get("attempt") else ""
    name = f"rank-{ranks['rank']:04d}@{agent.job['host']}{attempt}"
    label = os.path.join(agent.job["folder"], "logs", name)
    reads = ranks["rank"] == 0 and agent.job.get("stdin", False)
    tails: dict[str, collections.deque[str]] = {
        "out": collections.deque(maxlen=TAIL_LINES),
        "err": collections.deque(maxlen=TAIL_LINES),
    }
    try:
        child = subprocess.Popen(
            [sys.executable, *argv],
            cwd=agent.job["cwd"],
            env=environment_of(agent.job, ranks),
            stdin=subprocess.PIPE if reads else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: prepare_child(agent.pid),  # no other thread runs yet
        )
    except OSError as error:
        agent.send({"event": "output", "stream": "err", "text": f"{error}\n"})
        return finish(agent, label, 127, [f"{error}\n"])
    for number in FORWARDED:
        signal.signal(number, lambda got, frame: child.send_signal(got))
    parts: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=end_with_agent, args=(agent, child, parts), daemon=True).start()
    if child.stdin:
        threading.Thread(target=feed, args=(parts, child.stdin, agent), daemon=True).start()
    over, ending = os.pipe()
    pumps = [
        threading.Thread(
            target=pump,
            args=(stream, f"{label}.{name}", name, agent, tails[name]),
            kwargs={"over": over},
            daemon=True,
        )
        for name, stream in (("out", child.stdout), ("err", child.stderr))
    ]
    for thread in pumps:
        thread.start()
    code = child.wait()
    ended = time.clock_gettime(time.CLOCK_BOOTTIME)
    os.close(ending)
    for thread in pumps:
        thread.join(LAST_SECONDS)
    tail = list(tails["err"]) or list(tails["out"])
    at = failed_at(child.pid, ended) if code else ended
    return finish(agent, label, code, tail, at=at, alone=was_alone(ranks["rank"]))


def was_alone(rank: int) -> bool:
    """Whether MPI told the program that it is the only rank (in_rank/sitecustomize.py)."""
    return os.path.exists(os.path.join(os.environ["MUSTER_AGENT"], f"world-of-one-{rank}"))


def failed_at(pid: int, ended: float) -> float:
    """When the program failed, which in_rank/sitecustomize.py has left, or else when it had ended.

    Its connections close some time before it has ended: peers that notice may end, and be reported, first.
    """
    path = os.path.join(os.environ["MUSTER_AGENT"], f"failed-{pid}")
    with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
        if 0 <= (at := float(file.read(64))) <= ended:  # the program may have written it: nan is no time
            return at
    return ended


def finish(
    agent: Agent, label: str, code: int, tail: list[str], *, at: float | None = None, alone: bool = False
) -> int:
    """Send the exit record to the agent, and write it here if possible: the disk may be full or gone.

    `at`: when it failed or ended, by the clock of common/clock.py; now, if the program never began.
    """
    record = {"code": code, "time": time.time(), "tail": tail, **({"alone": True} if alone else {})}
    at = time.clock_gettime(time.CLOCK_BOOTTIME) if at is None else at
    agent.send({"event": "rank-end", **record, "time": at})
    with contextlib.suppress(OSError), open(f"{label}.json", "wb") as file:
        file.write(json.dumps(record).encode())
    return code


def end_with_agent(agent: Agent, child: subprocess.Popen[bytes], parts: SimpleQueue[bytes]) -> None:
    """End the program when the agent is gone; until then pass on its standard input."""
    agent.listen(parts.put)
    child.kill()


if __name__ == "__main__":
    status = run(sys.argv[1:])
    sys.exit(status if status >= 0 else 128 - status)
