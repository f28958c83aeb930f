"""Serves an editor inside a rank: debugpy, on the connection of the console. muster_console.py loads this.

On its own, debugpy listens on TCP, where every user of the host can connect and run code as this user. Here
it reads and writes the connection that the console has accepted: a Unix socket, from the same user.

When the editor has left, the rank is as it was: not traced, and without threads of debugpy. Python 3.9; the
standard library, and debugpy of the rank's environment, else the one that the agent has unpacked.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import muster_console as base
    from . import muster_debug as debug
else:  # the first has loaded this module, and is in sys.modules
    import muster_console as base
    import muster_debug as debug

# Without the first, debugpy warns on the rank's stderr that it misses breakpoints in Python's frozen modules.
SETTINGS = {"PYDEVD_DISABLE_FILE_VALIDATION": "1", "PYDEVD_USE_FRAME_EVAL": "NO"}
LEAVE_SECONDS = 3.0
_HERE = os.path.dirname(os.path.abspath(__file__))
_forks: list[Any] = []


def serve(connection: socket.socket, stream: Any, request: dict[str, Any]) -> None:
    """Answer whether debugpy is there; attach it as soon as the editor sends something."""
    try:
        pydevd = _load(request["folder"])
    except ImportError as error:
        base.send(stream, {"missing": True, "error": base.named(error)})
        return
    if not _is_free(pydevd):
        base.send(stream, {"error": debug.TRACED})
        return
    base.send(stream, {"ready": True})
    if connection.recv(1, socket.MSG_PEEK) and debug.tracing.acquire(blocking=False):
        try:
            _attach(pydevd, connection)
        finally:
            debug.tracing.release()


def _is_free(pydevd: Any) -> bool:
    """Whether no debugger is attached. That of an editor which attaches again may still be leaving."""
    if not debug.tracing.acquire(timeout=LEAVE_SECONDS):
        return False
    debug.tracing.release()
    return not pydevd.get_global_debugger()  # the program itself has called debugpy


def _load(folder: str) -> Any:
    """Import debugpy's server; ImportError if there is none, or none for this Python."""
    kept, hook = {name: os.environ.get(name) for name in SETTINGS}, sys.breakpointhook
    os.environ.update(SETTINGS)
    brought = [folder] if os.path.isdir(folder) else []  # Python would note that a folder is not there
    sys.path.extend(brought)  # last: debugpy of the rank's environment comes first
    try:
        import_module("debugpy")
        import_module("debugpy._vendored.force_pydevd")
        return import_module("pydevd")
    except ImportError:
        raise
    except Exception as error:  # noqa: BLE001  # a copy for another Python may fail in any way
        raise ImportError(base.named(error)) from None
    finally:
        sys.path[:] = [path for path in sys.path if path not in brought]
        sys.breakpointhook = hook
        for name, value in kept.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _attach(pydevd: Any, connection: socket.socket) -> None:
    """Let the editor debug the rank until the connection ends."""
    debugpy, before, hook = sys.modules["debugpy"], {*threading.enumerate()}, sys.breakpointhook
    _stop_in_children(pydevd)
    pydevd.start_client = lambda host, port: connection.dup()
    try:
        pydevd.settrace(
            "rank",
            suspend=False,
            wait_for_ready_to_run=False,
            notify_stdin=False,
            dont_trace_start_patterns=(os.path.dirname(str(debugpy.__file__)), _HERE),
            protocol="dap",
        )
        sys.breakpointhook = debugpy.breakpoint
        _hide_own(before)
        watched = select.poll()
        watched.register(connection, select.POLLRDHUP)
        watched.poll()
    finally:
        sys.breakpointhook = hook
        pydevd.stoptrace()
        debug.in_main_thread(lambda: sys.settrace(None))
        _forget_dummies(before)


def _stop_in_children(pydevd: Any) -> None:
    """Trace no child that the program forks: it has no thread of debugpy, and would stand at a breakpoint."""

    def stop() -> None:
        if debug.tracing.locked():
            with contextlib.suppress(Exception):
                pydevd.settrace_forked(setup_tracing=False)
                pydevd.stoptrace()

    if not _forks:
        _forks.append(stop)
        os.register_at_fork(after_in_child=stop)


def _hide_own(before: set[threading.Thread]) -> None:
    """Keep the thread of muster_start.py, which debugpy has found, out of the editor's list."""
    frames = sys._current_frames()
    for thread in {*threading.enumerate()} - before:
        frame = frames.get(thread.ident or 0)
        while frame and frame.f_back:
            frame = frame.f_back
        if frame and frame.f_code.co_filename.startswith(_HERE):
            vars(thread).update(base.HIDDEN)


def _forget_dummies(before: set[threading.Thread]) -> None:
    """Remove threads from `threading` that it has not made, and that are in it only for debugpy."""
    with threading._active_limbo_lock:  # type: ignore[attr-defined]
        active = threading._active  # type: ignore[attr-defined]
        for ident, thread in [*active.items()]:
            if isinstance(thread, threading._DummyThread) and thread not in before:
                del active[ident]
