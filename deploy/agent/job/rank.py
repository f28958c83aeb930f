"""Wraps one rank: keeps its output and its end, and works the same under mpirun and torchrun.

Usage: ``rank.py ARG ...`` runs ``python ARG ...`` with its own Python. A launcher starts it below the host's
agent as ``muster-rank``, found on PATH: the right file on every host. The output goes byte for byte to
``logs/rank-0007@node2.{out,err}`` on this host, and line by line to the agent; the end, with the last lines
and the time, to ``logs/rank-0007@node2.json``. Exits as the program does (128 + n for signal n).
Standard library only, run by ``python -IS``: every rank pays for its imports. Once the program runs, nothing
is imported and no codec is looked up, as by `open` for text: Python may have been replaced by then.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING or __package__:
    from .rank_log import TAIL_LINES, Log, pump
else:  # a separate program; the other file is beside it
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from rank_log import TAIL_LINES, Log, pump

PR_SET_PDEATHSIG, PR_SET_PTRACER = 1, 0x59616D61  # prctl(2)
LAST_SECONDS = 10.0  # at the end, to pass on the rest of the output; children may print forever
RELEASE_SECONDS = 5.0  # a process that is to fork answers at once
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def position_of(environment: Mapping[str, str]) -> dict[str, int]:
    """Read this rank's position. torchrun's variables come first: its workers inherit an outer mpirun's."""
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


class AgentConnection:
    """The connection to this host's agent; this rank ends with it."""

    def __init__(self, hello: dict[str, Any]) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(os.path.join(os.environ["MUSTER_AGENT"], "agent"))
        # struct ucred, unix(7): the process that listens there
        peer = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid: int = struct.unpack("3i", peer)[0]
        self._stream = self._socket.makefile("rwb")
        self._lock = threading.Lock()
        self.send(hello)
        self.job: dict[str, Any] = json.loads(self._stream.readline())

    def send(self, frame: dict[str, Any]) -> None:
        """Send one JSON line; `wait` notices when the agent is gone."""
        with self._lock, contextlib.suppress(OSError):
            self._stream.write(json.dumps(frame).encode() + b"\n")
            self._stream.flush()

    def wait(self) -> None:
        """Wait until the agent is gone; it sends nothing more."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.read(1)


def environment_of(
    job: Mapping[str, Any], ranks: Mapping[str, int], outer: Mapping[str, str], programs: str
) -> dict[str, str]:
    """The program's environment: the plan's, and torchrun's names for programs that need them.

    `outer`: that of this wrapper; `programs`: its folder.
    """
    names = {name.upper(): str(value) for name, value in ranks.items()}
    environment = {**outer, **names, **job["env"]}
    # `import muster.train` works in every rank. Our library comes last: it must not hide the user's modules.
    # Only our sitecustomize comes first; it runs the user's, and removes its folder from the path.
    hook = os.path.join(programs, "in_rank")
    paths = [hook, environment.get("PYTHONPATH", ""), os.path.join(job["folder"], "lib")]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def prepare_child(agent: int) -> None:
    """In the child, before exec: have the kernel kill it when this wrapper ends.

    The launcher ignores the signals for ranks; the program has their default action. The agent and its
    children may read the child's stack, also where Yama restricts that (`fab stacks`).
    """
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    libc.prctl(PR_SET_PTRACER, agent, 0, 0, 0)  # fails without Yama, where it is not needed


class Released:
    """The program of this rank, whose imports were done before (in_rank/muster_preload.py).

    This process became its parent before it became a wrapper, and not by the launcher. The process that the
    launcher has started waits at the other end of `asking` for the status of the program.
    """

    def __init__(self, pid: int, asking: int, out: int, err: int) -> None:
        self.pid, self._over = pid, False
        for descriptor in (asking, out, err):
            os.set_inheritable(descriptor, False)
        self._asking = socket.socket(fileno=asking)
        self.stdout, self.stderr = os.fdopen(out, "rb"), os.fdopen(err, "rb")
        threading.Thread(target=self._end_with_launcher, daemon=True).start()

    def _end_with_launcher(self) -> None:
        with contextlib.suppress(OSError):
            self._asking.recv(1)
        self.kill()

    def send_signal(self, number: int) -> None:
        """Send the program a signal, unless it has ended."""
        if not self._over:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End the program."""
        self.send_signal(signal.SIGKILL)

    def wait(self) -> int:
        """Wait for its end; returns the exit code, negative for a signal."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self._over = True  # from the next call on, another process may have its number
        status = os.waitpid(self.pid, 0)[1]
        return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def report(self, status: int) -> None:
        """Tell the process of the launcher how this wrapper ends."""
        with contextlib.suppress(OSError):
            self._asking.sendall(b"%d\n" % status)


Program = Union["subprocess.Popen[bytes]", Released]


def run_released(argv: list[str]) -> int | None:
    """Let a process that has done the imports run the program, to its end; None if there is none.

    Returns the status of its wrapper, for which this process stands in below the launcher.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.settimeout(RELEASE_SECONDS)
            connection.connect(os.path.join(os.environ["MUSTER_AGENT"], "agent"))
            hello = {"hello": "preload", "argv": argv, "env": dict(os.environ)}
            connection.sendall(json.dumps(hello).encode() + b"\n")
            stream = connection.makefile("rb")
            wrapper: int = json.loads(stream.readline() or b"{}").get("wrapper", 0)
        except (OSError, ValueError):
            return None
        if not wrapper:
            return None

        def forward(number: int, frame: object) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(wrapper, number)

        for number in FORWARDED:
            signal.signal(number, forward)
        connection.settimeout(None)
        connection.sendall(b"\n")
        if not (status := stream.readline()):  # the wrapper was killed
            os.kill(os.getpid(), signal.SIGKILL)
        return int(status)


def start(argv: list[str], agent: AgentConnection, ranks: Mapping[str, int]) -> subprocess.Popen[bytes]:
    """Start Python with these arguments."""
    programs = os.path.dirname(os.path.abspath(__file__))
    return subprocess.Popen(
        [sys.executable, *argv],
        cwd=agent.job["cwd"],
        env=environment_of(agent.job, ranks, os.environ, programs),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: prepare_child(agent.pid),  # no other thread runs yet
    )


def run(argv: list[str], released: Released | None = None) -> int:
    """Run Python with these arguments to its end; returns its exit code, negative for a signal."""
    ranks = position_of(os.environ)
    agent = AgentConnection({"hello": "rank", "pid": os.getpid(), **ranks})
    label = os.path.join(os.path.realpath(agent.job["folder"]), "logs", agent.job["log"])
    tails: dict[str, collections.deque[str]] = {
        "out": collections.deque(maxlen=TAIL_LINES),
        "err": collections.deque(maxlen=TAIL_LINES),
    }
    try:
        child = released or start(argv, agent, ranks)
    except OSError as error:
        agent.send({"event": "output", "stream": "err", "text": f"{error}\n"})
        return finish(agent, label, 127, [f"{error}\n"])
    for number in FORWARDED:
        signal.signal(number, lambda got, frame: child.send_signal(got))
    threading.Thread(target=end_with_agent, args=(agent, child), daemon=True).start()
    over, ending = os.pipe()
    logs = {name: Log(f"{label}.{name}", agent.send) for name in tails}
    pumps = [
        threading.Thread(
            target=pump,
            args=(stream, logs[name], name, agent.send, tails[name]),
            kwargs={"over": over},
            daemon=True,
        )
        for name, stream in (("out", child.stdout), ("err", child.stderr))
    ]
    for thread in pumps:
        thread.start()
    code = child.wait()
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        # When Python ends, a signal with a handler gets its default action back: to end this process.
        signal.signal(number, signal.SIG_IGN)
    ended = time.clock_gettime(time.CLOCK_BOOTTIME)
    os.close(ending)
    for thread in pumps:
        thread.join(LAST_SECONDS)
    tail = list(tails["err"]) or list(tails["out"])
    at = over_at(child.pid, ended)
    return finish(agent, label, code, tail, at=at, alone=was_alone(ranks["rank"]), logs=[*logs.values()])


def was_alone(rank: int) -> bool:
    """Whether the program was the only rank of its MPI world (in_rank/sitecustomize.py)."""
    return os.path.exists(os.path.join(os.environ["MUSTER_AGENT"], f"world-of-one-{rank}"))


def over_at(pid: int, ended: float) -> float:
    """The time when the program was over, which in_rank/muster_over.py notes, or else the end of its process.

    Its connections close some time before it has ended: peers that notice may end, and be reported, first.
    """
    path = os.path.join(os.environ["MUSTER_AGENT"], f"over-{pid}")
    with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
        if 0 <= (at := float(file.read(64))) <= ended:  # the program may have written it: nan is no time
            return at
    return ended


def finish(
    agent: AgentConnection,
    label: str,
    code: int,
    tail: list[str],
    *,
    at: float | None = None,
    alone: bool = False,
    logs: Sequence[Log] = (),
) -> int:
    """Send the exit record to the agent, and write it here if possible: the disk may be full or gone.

    `at`: when it failed or ended, by the clock of common/clock.py; now, if the program never began.
    """
    record = {"code": code, "time": time.time(), "tail": tail, **({"alone": True} if alone else {})}
    at = time.clock_gettime(time.CLOCK_BOOTTIME) if at is None else at
    agent.send({"event": "rank-end", **record, "time": at})
    record_file = Log(f"{label}.json", lambda frame: None)
    record_file.write(json.dumps(record).encode())
    for log in (*logs, record_file):
        log.begin_close()
    for log in (*logs, record_file):
        log.close()
    return code


def end_with_agent(agent: AgentConnection, child: Program) -> None:
    """End the program when the agent is gone."""
    agent.wait()
    child.kill()


def main(argv: list[str]) -> int:
    """Run the program; returns the status of this process."""
    if numbers := os.environ.pop("MUSTER_RELEASED", ""):
        released = Released(*map(int, numbers.split()))
        status = run(argv, released)
        status = status if status >= 0 else 128 - status
        released.report(status)
        return status
    if os.environ.get("MUSTER_PRELOAD") == "1":
        ended = run_released(argv)
        if ended is not None:
            return ended
    status = run(argv)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
