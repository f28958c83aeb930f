"""Runs a command in the job's container: ``enter.py ARG ...``, started by the agent, or by mpirun outside.

The command gets this program's standard streams, and the launcher's variables for its rank. Signals are
passed on to it, and this program ends with its status. Standard library only, run by ``python -IS``.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import sys
from types import FrameType

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "PRTE_")


def main(argv: list[str]) -> None:
    """Run a command to its end. If no answer comes, the container is gone, and the job with it."""
    keeper = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        keeper.connect(os.path.join(os.environ["MUSTER_AGENT"], "enter"))
    except OSError as error:
        sys.exit(f"the job's container is gone: {error.strerror}")
    socket.send_fds(keeper, [b"\0"], [0, 1, 2])
    env = {name: value for name, value in os.environ.items() if name.startswith(LAUNCHERS)}
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        folder = "/"
    command = {"argv": argv, "env": env, "cwd": folder}
    keeper.sendall(json.dumps(command).encode() + b"\n")

    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):  # it has ended
            keeper.sendall(json.dumps({"signal": number}).encode() + b"\n")

    for number in FORWARDED:
        signal.signal(number, forward)
    answer = keeper.makefile("rb").readline()
    code = json.loads(answer)["code"] if answer else -signal.SIGKILL
    if code < 0:  # end as it did; a dump would be of this program
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL has no handler to take away
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
