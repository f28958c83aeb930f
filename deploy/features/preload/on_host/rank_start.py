"""Starts a rank from the process that has done its imports, if one waits, and else as usual (`--preload`).

A launch with --preload has this in place of bin/rank.py, and that as bin/wrapper.py. Standard library only,
Python 3.9, run by `python -IS`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from importlib import import_module
from typing import Any

RELEASE_SECONDS = 5.0  # a process that is to fork answers at once


class Released:
    """The program of this rank. This process became its parent before it became a wrapper."""

    def __init__(self, pid: int, out: int, err: int) -> None:
        self.pid, self._over = pid, False
        for descriptor in (out, err):
            os.set_inheritable(descriptor, False)
        self.stdout, self.stderr = os.fdopen(out, "rb"), os.fdopen(err, "rb")

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


def run_released(wrapper: Any, argv: list[str]) -> None:
    """Let a process that has done the imports run the program; returns only if there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.settimeout(RELEASE_SECONDS)
            connection.connect(os.path.join(os.environ["MUSTER_AGENT"], "agent"))
            hello = {"hello": "preload", "argv": argv, "env": dict(os.environ)}
            connection.sendall(json.dumps(hello).encode() + b"\n")
            stream = connection.makefile("rb")
            pid = json.loads(stream.readline() or b"{}").get("wrapper", 0)
        except (OSError, ValueError):
            return
        if pid:
            connection.settimeout(None)
            connection.sendall(b"\n")
            wrapper.stand_in(pid, stream)


def main(argv: list[str]) -> None:
    """Run the program, in a wrapper that is not the process of the launcher."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    wrapper: Any = import_module("wrapper")
    if numbers := os.environ.pop("MUSTER_RELEASED", ""):
        pid, connection, out, err = map(int, numbers.split())
        os.set_inheritable(connection, False)
        wrapper.run(argv, wrapper.Launcher(socket.socket(fileno=connection)), Released(pid, out, err))
        os._exit(0)
    run_released(wrapper, argv)
    wrapper.main(argv)


if __name__ == "__main__":
    main(sys.argv[1:])
