"""Watches a rank whose program is over until its process has ended.

Python does not end a process whose program died of an exception while it has a thread that is no daemon, or
a process of multiprocessing: it waits for these, perhaps without end, and so do the other ranks. Here the
exception is reported at once, and the rank is ended after GRACE_SECONDS.

When the program is over, Python calls `threading._shutdown`, which waits for threads, and has set
`sys.last_value` by then if an exception ended it. So the program's own hooks (`sys.excepthook`) stay as they
are. Python does not keep the status of SystemExit: such a rank is reported, and is not ended.

`sitecustomize.py` loads this when a rank starts: at its end the disk may not answer, or have another Python.
Standard library only, Python 3.9.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` makes enums, which takes milliseconds
import contextlib
import os
import sys
import threading
import time
from types import FrameType, TracebackType

OVER = "over"  # the file of process 71, whose text is the time by the clock of core/wire/clock.py: over-71
GRACE_SECONDS = 60.0
"""From an uncaught exception to the end of its rank, for threads that still do something useful. A rank's
share of a large checkpoint is about 15 GB, which a disk of 250 MB/s takes in that time; meanwhile the other
ranks wait for this one. When the job ends, every rank has the grace of the launch."""
QUIET_SECONDS = 10.0  # the same for a program that ended without one, until its rank is reported
REPORT_SECONDS = 1.0  # the most that the end of a failed rank waits for its report
FLUSH_SECONDS = 1.0
MOST_NAMED, MOST_LINES, MOST_TEXT = 8, 20, 2000
_FOREIGN = (os.path.dirname(os.__file__) + os.sep, "<", __file__)


class ProgramEnd:
    """The end of this rank's program."""

    def __init__(self, environment: dict[str, str]) -> None:
        # Read now: the program may change the environment.
        self._agent, self._rank = environment.get("MUSTER_AGENT", ""), environment.get("RANK", "")
        self._pid = os.getpid()
        self._at = 0.0
        self._error: BaseException | None = None
        self._waits = False
        self._shutdown = getattr(threading, "_shutdown", None)
        if self._shutdown:  # else a Python that ends in another way
            threading._shutdown = self._on_shutdown  # type: ignore[attr-defined]

    def judge(self, status: int) -> int:
        """The status at the end of the exit functions; leaves the time of a failure."""
        self._error = None  # its frames would keep the program's objects, so that none of them is closed
        if self._waits:
            _signal.setitimer(_signal.ITIMER_REAL, 0.0)
        status = status or int(_uncaught() is not None)
        if status:
            self._leave_time()
        return status

    def _on_shutdown(self) -> None:
        if os.getpid() == self._pid and self._rank.isdecimal():  # no process that the rank forked
            with contextlib.suppress(Exception):
                self._begin()
        if self._shutdown:
            self._shutdown()

    def _begin(self) -> None:
        """Watch from now on, if there is anything to watch for."""
        self._leave_time()
        error = _uncaught()
        if error is None and not _kept_alive_by():
            return
        self._at, self._error = time.clock_gettime(time.CLOCK_BOOTTIME), error
        if error:
            self._report()
        self._waits = True
        # A signal, since Python 3.12 starts no thread any more. It interrupts the wait for threads.
        _signal.signal(_signal.SIGALRM, self._on_alarm)
        _signal.setitimer(_signal.ITIMER_REAL, GRACE_SECONDS if error else QUIET_SECONDS)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        """The process still lives: report it, and end it after an exception."""
        self._report(ended=self._error is not None)
        if self._error:
            # A thread that hangs may hold the lock of a stream: then SIGALRM ends the process.
            _signal.signal(_signal.SIGALRM, _signal.SIG_DFL)
            _signal.setitimer(_signal.ITIMER_REAL, FLUSH_SECONDS)
            self.flush()
            os._exit(130 if isinstance(self._error, KeyboardInterrupt) else 1)

    def _report(self, *, ended: bool = False) -> None:
        """Report to the agent of this host (core/agent/local_socket.py), if it can be reached."""
        error = self._error
        frame = {"hello": "over", "rank": int(self._rank), "time": self._at, "ended": ended}
        frame |= {"error": _shown(error), "ends_in": GRACE_SECONDS if error else 0.0}
        frame["alive"] = _kept_alive_by() or [_where(threading.main_thread(), "its main thread")]
        with contextlib.suppress(Exception):
            import json
            import socket

            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(REPORT_SECONDS)
                connection.connect(os.path.join(self._agent, "agent"))
                connection.sendall(json.dumps(frame).encode() + b"\n")

    def flush(self) -> None:
        """Flush the program's output."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()

    def _leave_time(self) -> None:
        """Leave the time of the end. A process forked by the rank leaves its own, which is not read."""
        with contextlib.suppress(OSError), open(f"{self._agent}/{OVER}-{os.getpid()}", "xb") as file:
            file.write(repr(time.clock_gettime(time.CLOCK_BOOTTIME)).encode())


def _uncaught() -> BaseException | None:
    """The exception that ended the program. One that a console within the program showed is none."""
    error: BaseException | None = getattr(sys, "last_value", None)
    trace: TracebackType | None = getattr(sys, "last_traceback", None)
    outermost = trace.tb_frame.f_code.co_name if trace else "<module>"  # none for a SyntaxError
    return error if outermost in {"<module>", "_run_module_as_main"} else None


def _shown(error: BaseException | None) -> list[str]:
    """The last lines of a traceback; only the exception if Python's library can no longer be read."""
    if error is None:
        return []
    try:
        from traceback import format_exception

        lines = "".join(format_exception(type(error), error, error.__traceback__)).splitlines()
    except Exception:  # noqa: BLE001  # the report is an extra
        lines = [f"{type(error).__name__}: {error}"]
    return [line[:MOST_TEXT] for line in lines[-MOST_LINES:]]


def _kept_alive_by() -> list[str]:
    """The threads and processes that Python waits for: `thread 'writer' in save (train.py:31)`."""
    threads = [each for each in threading.enumerate() if not each.daemon and each.is_alive()]
    named = [_where(each, f"thread {each.name!r}") for each in threads if each is not threading.main_thread()]
    parent = sys.modules.get("multiprocessing.process")
    children = [child for child in getattr(parent, "_children", ()) if not child.daemon and child.is_alive()]
    return [*named, *(f"process {each.name!r} (PID {each.pid})" for each in children)][:MOST_NAMED]


def _where(thread: threading.Thread, name: str) -> str:
    """A thread, with the innermost line of it that is not of Python's own library."""
    frames: list[FrameType] = []
    frame = sys._current_frames().get(thread.ident or 0)
    while frame:
        frames.append(frame)
        frame = frame.f_back
    own = [each for each in frames if not each.f_code.co_filename.startswith(_FOREIGN)]
    if not frames or (not own and thread is threading.main_thread()):
        return name
    code, line = (own or frames)[0].f_code, (own or frames)[0].f_lineno
    return f"{name} in {code.co_name} ({os.path.basename(code.co_filename)}:{line})"[:MOST_TEXT]
