"""Runs another program whose output the user sees, such as docker. A line shows for how long it is silent."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import shlex
import subprocess
import sys
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence

from ..core.text.live_line import live_line
from ..core.text.progress import Progress
from ..core.waits import waiting

QUIET_SECONDS = 2.0
"""A program that draws its own progress writes more often than this."""
LOOK_SECONDS = 0.2
SIZE = bytes(8)  # struct winsize, ioctl_tty(2)


def run_program(argv: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """Run a program, with more variables; returns its exit status.

    Its standard error is a terminal if that of this process is one: docker draws its progress there.
    """
    environment = {**os.environ, **(env or {})}
    what = shlex.join(argv[:2])
    if sys.stderr.isatty():
        return _on_terminal(argv, environment, what)
    child = subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True, errors="replace")
    with waiting(what), child as process:
        assert process.stderr is not None  # noqa: S101  # stderr=PIPE
        for line in process.stderr:
            sys.stderr.write(line)
    return process.returncode


def _on_terminal(argv: Sequence[str], env: Mapping[str, str], what: str) -> int:
    screen = sys.stderr.fileno()
    ours, theirs = pty.openpty()
    try:
        tty.setraw(theirs)  # the bytes arrive unchanged
        _copy_size(screen, theirs)
        child = subprocess.Popen(argv, env=env, stderr=theirs)
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    with waiting(what) as wait, Progress(lambda: str(wait), patience=QUIET_SECONDS), child as process:
        try:
            for part in _parts(ours, screen):
                with live_line.lock:
                    live_line.remove(part.decode(errors="replace"), is_terminal=True)
                    _write_all(screen, part)
        finally:
            os.close(ours)
    return process.returncode


def _parts(ours: int, screen: int) -> Iterator[bytes]:
    """The output of the program until its end. Meanwhile its terminal keeps the size of the screen."""
    while True:
        _copy_size(screen, ours)
        if select.select([ours], [], [], LOOK_SECONDS)[0]:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # EIO: no process has it open any more
                return
            if not part:
                return
            yield part


def _copy_size(source: int, target: int) -> None:
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, SIZE)
        if size != fcntl.ioctl(target, termios.TIOCGWINSZ, SIZE):
            fcntl.ioctl(target, termios.TIOCSWINSZ, size)


def _write_all(descriptor: int, content: bytes) -> None:
    """Write every byte, unless the terminal is gone."""
    with contextlib.suppress(OSError):
        while content:
            content = content[os.write(descriptor, content) :]
