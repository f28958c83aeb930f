"""The driver's end of a keeper's line: questions and answers, and events into one queue for all hosts."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from queue import Queue
from typing import Any, NamedTuple, Protocol

from ..common.frames import Frame, Readable, Writable, read_frame, write_frame
from ..errors import HostError, MusterError
from .bootstrap import Noise, await_greeting, keeper

# No keeper says more at once; without a bound, one that is not ours could fill this machine.
MOST_BYTES = 1 << 26
CLOCK_ROUNDS, CLOCK_LEAST_ROUNDS, CLOCK_SECONDS, CLOCK_PRECISION = 8, 3, 0.25, 0.001
PYTHON_FAILED = "it needs Python 3.9 or newer (--python names another), and a login whose shell runs commands"
NOISY = "start-up files of that login's shell (~/.bashrc) may print a little, but not that much"
FROZEN = "is it overloaded or frozen? look at its console"


class Pipe(Protocol):
    """A running keeper, as a transport gives it: two byte streams, and what it said at its end."""

    @property
    def reader(self) -> Readable: ...
    @property
    def writer(self) -> Writable: ...
    def last_words(self, said: str = "") -> LostError:
        """What came on stderr, else `said`, and the exit status: why a keeper did not start."""
        ...

    def close(self) -> None: ...


class Event(NamedTuple):
    """Something that happened on a host."""

    host: str
    frame: Frame


class LostError(HostError):
    """The line to a host's keeper is gone."""

    def __init__(self, text: str, remedy: str = "", *, kind: str = "host.lost") -> None:
        super().__init__(kind, text, remedy)


class Channel:
    """Talks to the keeper of one host; a thread reads what comes back."""

    def __init__(self, host: str, pipe: Pipe, events: Queue[Event]) -> None:
        self.host = host
        self.clock_offset = 0.0
        """Seconds to add to a time of this host to have it on the driver's clock."""
        self._heard = self._asked = time.monotonic()
        self._pipe, self._events = pipe, events
        self._numbers = itertools.count()
        self._posting = threading.Lock()
        self._waiting: dict[int, Future[Frame]] = {}
        self._lost = False
        self._noise: Noise | None = None
        self._explaining = threading.Lock()
        self._words: LostError | None = None
        with contextlib.suppress(OSError):  # a keeper that never started explains itself by its last words
            pipe.writer.write(keeper())
            pipe.writer.flush()
        threading.Thread(target=self._read, name=f"channel-{host}", daemon=True).start()

    def post(self, do: str, payload: bytes = b"", **request: Any) -> Future[Frame]:
        """Ask the keeper for something; the future holds its answer, `LostError` or `MusterError`."""
        number = next(self._numbers)
        if not self._waiting:
            self._asked = time.monotonic()
        future = self._waiting[number] = Future()
        with self._posting, contextlib.suppress(OSError):  # the reader notices
            write_frame(self._pipe.writer, {"do": do, "id": number, **request}, payload)
        if self._lost:
            self._fail_all()
        return future

    def ask(self, do: str, payload: bytes = b"", *, seconds: float = 30.0, **request: Any) -> Frame:
        """Ask, and wait for the answer."""
        return wait(self.post(do, payload, **request), self.host, seconds)

    def silent_for(self) -> float:
        """Seconds in which this host, though asked, has said nothing; who is not asked is not silent."""
        return time.monotonic() - max(self._heard, self._asked) if self._waiting else 0.0

    def report(self, frame: Frame) -> None:
        """Put an event of this side among those of the host."""
        self._events.put(Event(self.host, frame))

    def set_clock(self) -> None:
        """Note the host's clock."""
        ahead, _ = self.measure_clock()
        self.clock_offset = -ahead

    def measure_clock(self) -> tuple[float, float]:
        """How far the host's clock is ahead of this one, and how wrong that may be, in seconds.

        Half of a round trip is the most that it can be off; the quickest of several is the best one.
        """
        measured: list[tuple[float, float]] = []
        began = time.monotonic()
        while len(measured) < CLOCK_ROUNDS:
            late = time.monotonic() - began > CLOCK_SECONDS and len(measured) >= CLOCK_LEAST_ROUNDS
            if late or (measured and min(measured)[0] < CLOCK_PRECISION):
                break
            asked = time.time()
            there = float(self.ask("time", seconds=10.0)["time"])
            answered = time.time()
            measured.append(((answered - asked) / 2, there - (asked + answered) / 2))
        uncertainty, ahead = min(measured)
        return ahead, uncertainty

    def close(self) -> None:
        """Cut the lifeline: the keeper ends what it has started."""
        self._pipe.close()

    def _read(self) -> None:
        # What is no frame is the end of the line.
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
            self._noise = await_greeting(self._pipe.reader)
            while not self._noise and (received := read_frame(self._pipe.reader, MOST_BYTES)):
                frame, payload = received
                frame["payload"] = payload
                self._heard = time.monotonic()
                if "reply" in frame:
                    self._answer(frame)
                else:
                    self._events.put(Event(self.host, frame))
        self._lost = True
        self._fail_all()
        self._events.put(Event(self.host, {"event": "lost"}))

    def _answer(self, frame: Frame) -> None:
        future = self._waiting.pop(frame["reply"], None)
        if future is None:  # a host that answers what was not asked is not answered back
            return
        if "error" in frame:
            future.set_exception(MusterError(f"{self.host}: {frame['error']}"))
        else:
            future.set_result(frame)

    def _fail_all(self) -> None:
        while self._waiting:
            with contextlib.suppress(KeyError):
                _, future = self._waiting.popitem()
                future.set_exception(self._last_words())

    def _last_words(self) -> LostError:
        with self._explaining:  # they can be read once, and all who wait are told the same
            self._words = self._words or self._read_last_words()
            return self._words

    def _read_last_words(self) -> LostError:
        if self._noise is None:
            return self._pipe.last_words()
        if self._noise.endless:
            text = f"no keeper came, but 1 MiB of other output: {self._noise.said}"
            return LostError(text, NOISY, kind="ssh.shell-noisy")
        return self._pipe.last_words(self._noise.said)


def wait(future: Future[Frame], host: str, seconds: float) -> Frame:
    """The answer, or `LostError` if none comes in time."""
    try:
        return future.result(seconds)
    except FutureTimeoutError:  # the built-in one only since Python 3.11
        text = f"{host}: no answer within {seconds:.0f} s"
        raise LostError(text, FROZEN) from None
