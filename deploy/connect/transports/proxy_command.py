"""A ProxyCommand (ssh_config(5)), which talks through a socket.

paramiko's own talks through pipes: it reads forever after the command has ended, and waits with select(2),
which takes no file descriptor above 1023.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import tempfile

from .ssh_config import Route

END_SECONDS = 1.0
LAST_BYTES = 4096


class Proxy:
    """The running proxy command of a route; `socket` leads to it."""

    def __init__(self, route: Route) -> None:
        self.socket, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the command runs
        with theirs:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {_command_of(route)}"],  # as ssh does
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._errors,
                start_new_session=True,  # a Ctrl-C on the terminal is the driver's to handle
            )

    def last_words(self) -> str | None:
        """The command's last line if it has ended, or is just ending; None if it runs."""
        try:
            status = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        end = os.fstat(self._errors.fileno()).st_size
        tail = os.pread(self._errors.fileno(), LAST_BYTES, max(0, end - LAST_BYTES))
        lines = tail.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else f"exit status {status}"

    def close(self) -> None:
        """End the command."""
        self.socket.close()
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self._errors.close()


def _command_of(route: Route) -> str:
    """The command with its tokens replaced: %h, %n, %p, %r and %% (ssh_config(5), TOKENS)."""
    tokens = {"h": route.hostname, "n": route.name, "p": str(route.port), "r": route.user, "%": "%"}
    return re.sub(r"%([hnpr%])", lambda token: tokens[token[1]], route.proxy_command or "")
