"""Keeps the torchrun of the next attempt ready on this host, with its imports done (`--preload`).

It runs in_rank/muster_torchrun.py, with the Python and the environment of the torchrun that runs now. The
next attempt uses it only if it would be started in the same way.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..processes import Reaper

MODULE = "torch.distributed.run"
PROGRAM = os.path.join("in_rank", "muster_torchrun.py")
BOOTSTRAP = (
    "import runpy, socket, sys; runpy.run_path(sys.argv[1])['wait'](socket.socket(fileno=int(sys.argv[2])))"
)
MOST_ANSWER, MOST_REQUEST = 4096, 200_000
"""Bytes; the second is what a socket takes at once by default, without its overhead."""
Differing = Callable[[Mapping[str, str], Mapping[str, str]], Sequence[str]]
"""The variables in which two environments differ, without those that differ from attempt to attempt."""


class LauncherPreload:
    """The process that waits, one for each attempt after the first."""

    def __init__(self, reaper: Reaper, differing: Differing) -> None:
        self._reaper, self._differing = reaper, differing
        self._waiting: _Waiting | None = None

    @property
    def pid(self) -> int:
        """The process; 0 if there is none."""
        return self._waiting.process.pid if self._waiting and not self._waiting.ended else 0

    @property
    def imports(self) -> bool:
        """Whether it is not ready yet."""
        return bool(self.pid and self._waiting and not self._waiting.ready)

    def close(self) -> None:
        """End the process."""
        if self._waiting:
            self._waiting.end()

    def prepare(self, argv: Sequence[str], env: dict[str, str], programs: str, **options: Any) -> None:
        """Start the process for a launcher with this command, if that is torchrun, and once in an attempt."""
        if is_torchrun(argv) and self._waiting is None:
            self._waiting = _Waiting(self._reaper, argv, env, os.path.join(programs, PROGRAM), options)

    def release(
        self, argv: Sequence[str], env: dict[str, str], cwd: str, on_end: Callable[[int], None]
    ) -> subprocess.Popen[bytes] | None:
        """The process as the launcher with this command; None if there is none that could be it."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return None
        request = json.dumps({"argv": argv[1:], "env": env, "cwd": cwd}).encode()
        is_same = waiting.start == argv[:3] and not self._differing(env, waiting.env)
        if is_same and len(request) <= MOST_REQUEST and waiting.begin(request, on_end):
            return waiting.process
        waiting.end()
        return None


class _Waiting:
    """A process from its start until it is a launcher."""

    def __init__(
        self, reaper: Reaper, argv: Sequence[str], env: dict[str, str], script: str, options: dict[str, Any]
    ) -> None:
        self.start, self.env = argv[:3], env
        self.ready = self.ended = False
        self._on_end: Callable[[int], None] = lambda code: None
        self._ending = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = reaper.start(
                # MODULE is no argument: the process is found by it, as any torchrun.
                [argv[0], "-c", BOOTSTRAP, script, str(theirs.fileno()), MODULE],
                self._ended,
                env=env,
                pass_fds=(theirs.fileno(),),
                **options,
            )
        threading.Thread(target=self._hear, daemon=True).start()

    def begin(self, request: bytes, on_end: Callable[[int], None]) -> bool:
        """Let it run as a launcher, whose end is reported from now on; False if it cannot."""
        with self._ending:
            if not self.ready or self.ended:
                return False
            self._on_end = on_end
        with contextlib.suppress(OSError):  # it has just ended
            self._control.send(request)
        self._control.close()
        return True

    def end(self) -> None:
        """End it, before it is a launcher."""
        self._control.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    def _hear(self) -> None:
        with contextlib.suppress(OSError, ValueError, LookupError):
            self.ready = not json.loads(self._control.recv(MOST_ANSWER))["why"]

    def _ended(self, code: int) -> None:
        with self._ending:
            self.ended = True
            on_end = self._on_end
        on_end(code)


def is_torchrun(argv: Sequence[str]) -> bool:
    """Whether this is a command of deploy/plan/torchrun.py."""
    return len(argv) > 2 and argv[1] in {"-m", "-c"} and MODULE in argv[2]
