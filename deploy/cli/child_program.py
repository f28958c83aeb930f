"""Runs another program, such as docker, in this terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from ..core.text.progress import Progress

END_SECONDS = 10.0
"""The time for its orderly end."""


def run_program(argv: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """Run a program, with more variables; returns its exit status.

    A signal may reach this process alone, and docker's plugins get none from docker. So the program has a
    session of its own, all of which gets the signal.
    """
    Progress.close_all()
    sys.stdout.flush()
    with subprocess.Popen(argv, env={**os.environ, **(env or {})}, start_new_session=True) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGINT)
                process.wait(END_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            raise
