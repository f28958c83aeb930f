"""The first process of a job's container: starts the commands of the agent inside, and ends with the agent.

It has one connection to the agent, its lifeline: when that closes, it ends everything in the container and
itself, and the engine removes the container. The agent's commands come through another socket, by `enter.py`:
each with its standard streams, so that a command inside is piped as if it ran outside. The container has the
host's process numbers, so the agent reads, signals and ends ranks as without one. A separate program, of the
standard library only, run by the image's own Python (3.9) with `-IS`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from ....core.agent.processes import (
        PR_SET_CHILD_SUBREAPER,
        Reaper,
        die_with_agent,
        end_descendants,
        prctl,
    )
else:  # a separate program; the other file is beside it
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from processes import PR_SET_CHILD_SUBREAPER, Reaper, die_with_agent, end_descendants, prctl

STREAMS = 3


class Lifeline:
    """The connection to the agent. `job`: its answer, the environment and folder of commands."""

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
        """Set `over` when the agent is gone, or reports the end of the job."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.readline()
        over.set()


class ContainerCommands:
    """Starts commands, waits for them and for processes that they left, and reports how each ended."""

    def __init__(self, lifeline: Lifeline) -> None:
        self._reaper = Reaper(lambda name, code: lifeline.send({"adopted": name, "code": code}))
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
                process = self._start(json.loads(stream.readline()), streams, caller)
            finally:
                for descriptor in streams:
                    os.close(descriptor)
            if process:
                for line in stream:
                    os.kill(process.pid, json.loads(line)["signal"])
                with contextlib.suppress(ProcessLookupError):
                    if process.returncode is None:  # the caller was killed, and its command ends with it
                        os.kill(process.pid, signal.SIGKILL)

    def _start(
        self, command: dict[str, Any], streams: list[int], caller: socket.socket
    ) -> subprocess.Popen[bytes] | None:
        """Start a command; None if it could not be started."""
        try:
            return self._reaper.start(
                command["argv"],
                lambda code: _report(caller, code),
                # mpirun starts ranks in the head's folder, which another host's container may not have.
                cwd=command["cwd"] if os.path.isdir(command["cwd"]) else "/",
                env={**self._environment, **command["env"]},
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
                start_new_session=True,
                preexec_fn=die_with_agent,  # with this process: the child only calls prctl
            )
        except OSError as error:
            os.write(streams[2], f"{command['argv'][0]}: {error.strerror}\n".encode())
            _report(caller, 127)
            return None


def _report(caller: socket.socket, code: int) -> None:
    with contextlib.suppress(OSError):
        caller.sendall(json.dumps({"code": code}).encode() + b"\n")
        caller.shutdown(socket.SHUT_RDWR)


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
    threading.Thread(target=lifeline.wait, args=(over,), daemon=True).start()
    over.wait()
    while end_descendants():  # a process that is stuck in the kernel keeps the container
        pass
    os._exit(0)  # threads wait forever


if __name__ == "__main__":
    main()
