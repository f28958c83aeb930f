"""Ends a command by signals: the first starts its orderly end, the same again bounds it, a third ends it now.

The first signal raises KeyboardInterrupt in the main thread. Python drops an exception that is raised inside
of a callback (`__del__`, a weakref): it is raised again, and loops that wait for hosts look for it too
(`check`). If a signal arrives just before the main thread begins to wait, a thread wakes it. That thread also
counts later signals, because the main thread may be stuck. However this process ends, its connections end
too, and agents then end everything that they started.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

TERMINAL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
BOUND_SECONDS = 5.0
"""The limit of the orderly end after a second signal."""
SAME_SECONDS = 0.3
"""Signals this close are one: `timeout`, `uv run` and shells pass on the terminal's signals too."""
WAKE_SECONDS = 0.02
AGAIN = signal.SIGURG
"""To ourselves; ignored by default, and no timer of another library uses it."""


class ConnectingInterrupt(KeyboardInterrupt):
    """A signal came before all hosts were connected, so the command has begun nothing on them."""


class _Interrupts:
    """The signals of one command."""

    def __init__(self, bound: float = BOUND_SECONDS) -> None:
        self.number, self.pending, self.held = 0, 0, False
        self.status: int | None = None
        """The exit status of a command whose result is known."""
        self._numbers: frozenset[int] = frozenset()
        self._bound, self._main = bound, threading.get_ident()
        self._was_dropped = False
        """Whether Python has dropped the exception, so that it must be raised again."""
        self.counted, self._last = 0, -SAME_SECONDS
        self._seen: set[int] = set()

    def begin(self, numbers: Sequence[int]) -> None:
        """Handle these signals from now on, except those that are ignored, as SIGHUP under nohup."""
        handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        self._numbers = frozenset(handled)
        self._watch()
        for number in handled:
            signal.signal(number, self._interrupt)
        signal.signal(AGAIN, self._raise_again)
        sys.unraisablehook = self._dropped
        if signal.SIGQUIT in handled:  # stderr may be closed, or no file of the operating system
            with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):
                faulthandler.register(signal.SIGQUIT, all_threads=True, chain=True)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self.number:
            self.number = self.pending = number
            if not self.held:
                raise KeyboardInterrupt(number)

    def _raise_again(self, number: int, frame: FrameType | None) -> None:
        if self._was_dropped and self.pending and not self.held:
            self._was_dropped = False
            raise KeyboardInterrupt(self.pending)

    def _dropped(self, unraisable: Any) -> None:
        """Called by Python for an exception that it drops."""
        if not (self.pending and issubclass(unraisable.exc_type, KeyboardInterrupt)):
            sys.__unraisablehook__(unraisable)
            return
        self._was_dropped = True
        timer = threading.Timer(WAKE_SECONDS, signal.pthread_kill, (self._main, AGAIN))
        timer.daemon = True
        timer.start()

    # -- the thread --

    def _watch(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        old = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        if old >= 0:
            os.close(old)  # its thread ends
        threading.Thread(target=self._count, args=(reader,), name="signals", daemon=True).start()

    def _count(self, reader: int) -> None:
        while numbers := os.read(reader, 64):
            for number in numbers:
                if number in self._numbers and time.monotonic() - self._last > SAME_SECONDS:
                    self._last = time.monotonic()
                    is_repeated = number in self._seen
                    self._seen.add(number)
                    if self.counted and not is_repeated:  # CI services send SIGINT, then SIGTERM
                        continue
                    self.counted += 1
                    self._act(number)
        os.close(reader)

    def _act(self, number: int) -> None:
        status = 128 + number if self.status is None else self.status
        if self.counted == 1:
            time.sleep(WAKE_SECONDS)
            signal.pthread_kill(self._main, AGAIN)
        elif self.counted == 2:
            _print(f"ending within {self._bound:.0f} s, at once after one more signal; hosts end the rest")
            timer = threading.Timer(self._bound, _end, (status,))
            timer.daemon = True
            timer.start()
        elif self.counted > 2:
            _end(status)


_interrupts = _Interrupts()
# A forked child shares the pipe of `_watch`, and its signals must not count here.
os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))


def begin(numbers: Sequence[int] = TERMINAL, bound: float = BOUND_SECONDS) -> None:
    """Let signals end this process from now on, in an orderly way; only the main thread can.

    `bound`: the seconds that its end may take after a second signal.
    """
    global _interrupts  # noqa: PLW0603  # fab may run several commands
    if threading.current_thread() is threading.main_thread():
        _interrupts = _Interrupts(bound)
        _interrupts.begin(numbers)


def check() -> None:
    """Raise KeyboardInterrupt if a signal came that was not `taken`. For loops of the main thread."""
    if _interrupts.pending and threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt(_interrupts.pending)


def taken() -> None:
    """Note that the orderly end has begun: the KeyboardInterrupt was caught."""
    _interrupts.pending = 0


def hurried() -> bool:
    """Whether a second signal has come: the orderly end has little time now."""
    return _interrupts.counted > 1


def decide(status: int) -> None:
    """Note the result of the command. A signal no longer changes it, and interrupts nothing but extras."""
    _interrupts.status, _interrupts.held = status, True


def decided() -> int | None:
    """The exit status of a command whose result is known."""
    return _interrupts.status


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Extras after the result: a signal raises KeyboardInterrupt here, also one that came before."""
    held, _interrupts.held = _interrupts.held, False
    try:
        check()
        yield
    finally:
        _interrupts.held = held


def _print(text: str) -> None:
    erase = "\r\x1b[K" if os.isatty(2) else ""  # a line of progress may be there (core/text/live_line.py)
    with contextlib.suppress(OSError):
        text = f"{erase}{text}"
        os.write(2, f"{text}\n".encode())


def _end(status: int) -> None:
    _print("ended at once: the records of the end are missing")
    os._exit(status)
