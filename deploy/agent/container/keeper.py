"""The first process of a job's container: starts what the agent wants inside, and ends with the agent.

It has one connection to the agent, its lifeline: when that closes, for whatever reason, it ends everything
in the container and itself, and the engine removes the container. The agent's commands come through a socket
of its own, by `enter.py`: each with its standard streams, so that a command inside is piped as if it ran
outside. The container has the host's process numbers, so the agent sees, asks and ends ranks as without one.
A program of its own, standard library only, run by the image's own Python (3.9) with `-IS`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import threading
import time
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
GRACE_SECONDS, POLL_SECONDS = 2.0, 0.02
STREAMS = 3


def prctl(option: int, value: int) -> None:
    """Call prctl(2)."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class Lifeline:
    """The connection to the agent. `job` has what it answers: the environment and folder of commands."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(os.path.join(os.environ["MUSTER_AGENT"], "agent"))
        self._stream = self._socket.makefile("rwb")
        self._sending = threading.Lock()
        self.send({"hello": "container", "pid": os.getpid()})
        self.job: dict[str, Any] = json.loads(self._stream.readline())

    def send(self, frame: dict[str, Any]) -> None:
        """Send one JSON line; `wait` notices when the agent is gone."""
        with self._sending, contextlib.suppress(OSError, ValueError):
            self._stream.write(json.dumps(frame).encode() + b"\n")
            self._stream.flush()

    def wait(self, over: threading.Event) -> None:
        """Set `over` when the agent is gone, or says that the job has ended."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.readline()
        over.set()


class ContainerCommands:
    """Starts commands, waits for them and for what they left, and tells who asked how they ended."""

    def __init__(self, lifeline: Lifeline) -> None:
        self._lifeline = lifeline
        self._changed = threading.Condition()
        self._callers: dict[int, socket.socket] = {}
        folder = lifeline.job["env"].get("PATH", "")
        path = os.pathsep.join(filter(None, (folder, os.environ.get("PATH", os.defpath))))
        self._environment = {**os.environ, **lifeline.job["env"], "PATH": path}

    def serve(self, listener: socket.socket) -> None:
        """Answer callers, each in a thread."""
        while True:
            caller, _ = listener.accept()
            threading.Thread(target=self._answer, args=(caller,), daemon=True).start()

    def _answer(self, caller: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            _, streams, _, _ = socket.recv_fds(caller, 1, STREAMS)
            try:
                stream = caller.makefile("rb")
                asked = json.loads(stream.readline())
                pid = self._start(asked, streams, caller)
            finally:
                for descriptor in streams:
                    os.close(descriptor)
            if pid:
                for line in stream:
                    os.kill(pid, json.loads(line)["signal"])
                with contextlib.suppress(ProcessLookupError):
                    if pid in self._callers:  # the caller was killed: what it stands for goes too
                        os.kill(pid, signal.SIGKILL)

    def _start(self, asked: dict[str, Any], streams: list[int], caller: socket.socket) -> int:
        """Start a command; returns its process, or 0 if it could not be started."""
        try:
            with self._changed:  # held until it is registered: a child may end at once
                process = subprocess.Popen(
                    asked["argv"],
                    # mpirun starts ranks in the head's folder, which another host's container may not have.
                    cwd=asked["cwd"] if os.path.isdir(asked["cwd"]) else "/",
                    env={**self._environment, **asked["env"]},
                    stdin=streams[0],
                    stdout=streams[1],
                    stderr=streams[2],
                    start_new_session=True,
                    preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
                )
                self._callers[process.pid] = caller
                self._changed.notify()
        except OSError as error:
            os.write(streams[2], f"{asked['argv'][0]}: {error.strerror}\n".encode())
            caller.sendall(b'{"code": 127}\n')
            caller.shutdown(socket.SHUT_RDWR)
            return 0
        process.returncode = 0  # `reap` waits for it
        return process.pid

    def reap(self) -> None:
        """Wait for every process that ends here."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
                name = name_of(ended.si_pid) if ended else ""  # a process has its name until it is reaped
                with self._changed:
                    pid, status = os.waitpid(ended.si_pid if ended else -1, 0)
                    caller = self._callers.pop(pid, None)
            except ChildProcessError:
                with self._changed:
                    self._changed.wait(0.5)
                continue
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            if caller:
                with contextlib.suppress(OSError):
                    caller.sendall(json.dumps({"code": code}).encode() + b"\n")
                    caller.shutdown(socket.SHUT_RDWR)
            elif code < 0:
                self._lifeline.send({"adopted": name, "code": code})


def name_of(pid: int) -> str:
    """The name of a process, also of one that has ended but is not reaped."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def below(pid: int) -> list[int]:
    """Every process below this one of which a thread lives, also where the first one has ended."""
    children: dict[int, list[int]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with (
            contextlib.suppress(OSError),
            open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as file,
        ):
            fields = file.read().rpartition(")")[2].split()
            if fields[0] not in "ZX" or int(fields[17]) > 1:  # num_threads, proc(5)
                children.setdefault(int(fields[1]), []).append(int(entry))
    level, pids = children.get(pid, []), []
    while level:
        pids += level
        level = [grandchild for child in level for grandchild in children.get(child, [])]
    return pids


def end_all() -> None:
    """End every process below: SIGTERM, and SIGKILL after the time of grace."""
    began = time.monotonic()
    told: set[int] = set()
    while living := below(os.getpid()):
        for pid in living:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if time.monotonic() - began > GRACE_SECONDS:
                    os.kill(pid, signal.SIGKILL)
                elif pid not in told:
                    told.add(pid)
                    os.kill(pid, signal.SIGTERM)
                    os.kill(pid, signal.SIGCONT)
        time.sleep(POLL_SECONDS)


def main() -> None:
    """Serve until the agent is gone, or the engine stops the container."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(os.path.join(os.environ["MUSTER_AGENT"], "enter"))
    listener.listen(512)
    lifeline = Lifeline()
    commands = ContainerCommands(lifeline)
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, frame: over.set())
    threading.Thread(target=commands.serve, args=(listener,), daemon=True).start()
    threading.Thread(target=commands.reap, daemon=True).start()
    threading.Thread(target=lifeline.wait, args=(over,), daemon=True).start()
    over.wait()
    end_all()
    os._exit(0)  # threads wait forever


if __name__ == "__main__":
    main()
