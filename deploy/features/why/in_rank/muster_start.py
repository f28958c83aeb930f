"""Loads the recorder when the program imports torch.distributed, and the console at its first connection.

`sitecustomize.py` imports this in every rank, also of a program that needs neither, so it must start fast:
it imports no module that takes more than 0.3 ms. The thread of the console is none of `threading`, where
programs count and join threads.

A mistake in here must not reach the program. Standard library only, Python 3.9.
"""

from __future__ import annotations

import _socket
import _thread
import contextlib
import os
import select
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

FORK_SECONDS = 1.0
_FOLDER = os.path.dirname(os.path.abspath(__file__))
_C10D = "torch.distributed.distributed_c10d"


class Finder:
    """Finds the modules beside this file, whose folder leaves the path, and has torch's module recorded."""

    def __init__(self) -> None:
        self._recorded = False

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Find torch's module as Python would; it is wrapped once it has run."""
        if name == _C10D and not self._recorded:
            self._recorded = True
            spec = PathFinder.find_spec(name, path, target)
            if spec and spec.loader:
                with contextlib.suppress(Exception):  # without a record the program runs as well
                    _wrap_loader(spec.loader, import_module("muster_recorder").recorder.wrap)
            return spec
        return PathFinder.find_spec(name, [_FOLDER]) if name.startswith("muster_") else None


def _wrap_loader(loader: Any, then: Callable[[ModuleType], None]) -> None:
    original = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        original(module)
        with contextlib.suppress(Exception):
            then(module)

    loader.exec_module = exec_module


class Listener:
    """The socket of this rank's console, and the thread that waits there (muster_console.py)."""

    def __init__(self, folder: str, rank: str) -> None:
        path = os.path.join(folder, f"console-{rank}")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of an earlier Python of the same rank, which a script of the shell has started
        self._listener: Any = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self._listener.bind(path)
        os.chmod(path, 0o600)
        self._listener.listen(8)
        self._reader, self._writer = os.pipe()
        self._forking, self._runs, self._left = _thread.RLock(), _thread.allocate_lock(), False
        os.register_at_fork(before=self._pause, after_in_parent=self._resume, after_in_child=self._leave)
        self._wait()

    def _wait(self) -> None:
        self._runs.acquire()
        try:
            _thread.start_new_thread(self._accept, ())
        except RuntimeError:  # the interpreter is about to end
            self._runs.release()

    def _accept(self) -> None:
        waiting = select.poll()
        waiting.register(self._listener, select.POLLIN)
        waiting.register(self._reader, select.POLLIN)
        try:
            while True:
                ready = [descriptor for descriptor, _ in waiting.poll()]
                if self._reader in ready:
                    with contextlib.suppress(OSError):  # the program may have closed it
                        os.read(self._reader, 1)
                    return
                with contextlib.suppress(OSError):
                    descriptor, _ = self._listener._accept()
                    try:
                        _thread.start_new_thread(_converse, (descriptor,))
                    except RuntimeError:  # no more threads
                        os.close(descriptor)
        finally:
            self._runs.release()

    # A fork copies one thread only, and Python warns if there are more: the thread ends before, and restarts.

    def _pause(self) -> None:
        if self._left:
            return
        self._forking.acquire()
        try:
            os.write(self._writer, b"x")
        except OSError:  # the program has closed it: the thread cannot end, and stays
            self._left = True
            self._forking.release()
            return
        if self._runs.acquire(timeout=FORK_SECONDS):
            self._runs.release()

    def _resume(self) -> None:
        if not self._left:
            self._wait()
            self._forking.release()

    def _leave(self) -> None:
        """In the child, which is not a rank."""
        self._left = True
        with contextlib.suppress(OSError):  # the program may have closed it
            self._listener.close()


def _converse(descriptor: int) -> None:
    try:
        converse = import_module("muster_console").converse
    except Exception:  # noqa: BLE001  # no traceback among the program's output; the user sees no answer
        os.close(descriptor)
        return
    converse(descriptor)


_kept: list[Listener] = []


def begin() -> None:
    """Open the console of this rank, and let the recorder write to its files."""
    folder, rank = os.environ["MUSTER_AGENT"], os.environ["RANK"]
    if "muster_recorder" in sys.modules:  # loaded before there was a rank (muster_preload.py)
        sys.modules["muster_recorder"].begin()
    _kept.append(Listener(folder, rank))


if __name__ == "muster_start":
    sys.meta_path.insert(0, Finder())
