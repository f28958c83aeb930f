"""The driver's end of an agent's connection: requests and their answers, and reports into one queue.

This is the boundary to a host: its input is checked here against the types of `requests` and `reports`. Any
mismatch ends the connection to this host, with a sentence about the mismatch.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, NamedTuple

from ..decode import MALFORMED
from ..errors import MusterError
from ..text.terminal import harmless
from ..waits import waiting
from ..wire.clock import now
from ..wire.frames import Frame, Readable, read_frame, write_frame
from ..wire.protocol import HANDLERS, ON_DEMAND
from .bootstrap import Noise, await_greeting, is_swallowed, late_source, remedy_of
from .inbox import OVERHEAD, Inbox
from .pipe import LostError, Pipe, SilentError, send_source
from .reports import BUSY, Event, Lost, Report, of_frame, room
from .requests import LOAD, TIME, Answer, Request, Time
from .silence import (
    FROZEN,
    SILENCE_SECONDS,
    TOGETHER_SECONDS,
    Clocks,
    Sign,
    losses,
    standstill,
)

ROUNDS, LEAST_ROUNDS, SECONDS, PRECISION = 8, 3, 0.25, 0.001


def measure_offset(ask: Callable[[], Time], *, steady: bool) -> tuple[float, float]:
    """The offset, positive if the host's clock is fast, and its uncertainty, in seconds.

    `steady`: not the time of day, but the monotonic clocks. The error is at most half a round trip, so the
    quickest of several round trips counts.
    """
    measured: list[tuple[float, float]] = []
    began = time.monotonic()
    while len(measured) < ROUNDS:
        late = time.monotonic() - began > SECONDS and len(measured) >= LEAST_ROUNDS
        if late or (measured and min(measured)[0] < PRECISION):
            break
        sent = now() if steady else time.time()
        answer = ask()
        host_time = answer.steady if steady else answer.time
        received = now() if steady else time.time()
        measured.append(((received - sent) / 2, host_time - (sent + received) / 2))
    uncertainty, offset = min(measured)
    return offset, uncertainty


# The longest line of an agent is shorter; the values of a line are bounded too (MOST_VALUES in frames.py).
MOST_LINE = 1 << 23
MOST_ERROR = 1 << 16
# Bytes of reports that may come while an answer is due, with those that were on their way: an agent answers
# in order, and reports every 2 seconds that it is busy.
MOST_UNANSWERED = 1 << 25
POLL_SECONDS = 0.5
NOISY = "start-up files of that login's shell (~/.bashrc) may print a little, but not that much"
SWALLOWED = "start-up files of that login's shell (~/.bashrc) read the input of the agent"
KEEP_OUT = "let them read nothing, and start no other shell, where there is no terminal: [ -t 0 ]"
DISTRUST = "check the host and its Python installation"
STUCK = "does a disk or network file system there not answer? df -h, dmesg; then the same command again"

Silence = Callable[[], Mapping[str, SilentError]]
"""Gives the hosts that are silent, each with the reason."""


class _Lines:
    """The stream from a host, with the length of the last line."""

    def __init__(self, stream: Readable) -> None:
        self._stream, self.length = stream, 0

    def readline(self, size: int = -1, /) -> bytes:
        line = self._stream.readline(size)
        self.length = len(line)
        return line

    def read(self, size: int, /) -> bytes:
        return self._stream.read(size)


class _Pending(NamedTuple):
    """A request that waits for its answer."""

    request: Request[Any]
    future: Future[Any]


class Channel:
    """Talks to the agent of one host; a thread reads what comes back."""

    def __init__(self, host: str, pipe: Pipe, events: Inbox) -> None:
        self.host = host
        self.remote, self.writer = pipe.remote, pipe.writer
        self.silence: Silence = self._own_silence
        """Judges the silence of this host; a cluster judges all of its hosts together."""
        self.reopen: Callable[[], Channel] = self._stay_lost
        """Connects to the host again, if a cluster has set it."""
        self.clock_offset = 0.0
        """Seconds to add to a time of this host's steady clock to convert it to the driver's (`now`)."""
        self.planned: frozenset[int] = frozenset()
        """The ranks that a job has on this host, which answers for no others (`expect_ranks`)."""
        self._heard = self._asked = self._answered = self._worked = time.monotonic()
        self._cpu: object = 0.0
        """The processor time of the agent's thread, by its last busy report. A host may lie about it."""
        self._unanswered = 0
        """Bytes of reports since the last answer or busy report."""
        self._pipe, self._events = pipe, events
        self._numbers = itertools.count()
        self._posting = threading.Lock()
        self._waiting: dict[int, _Pending] = {}
        self.greeted = self._given_up = False
        """Whether its agent has started."""
        self._sent: set[str] = set()
        """The modules of handlers that were sent after the start."""
        self.lost: LostError | None = None
        """Why the connection has ended."""
        send_source(pipe)
        threading.Thread(target=self._read, name=f"channel-{host}", daemon=True).start()

    def post(self, request: Request[Answer], payload: bytes = b"", **arguments: Any) -> Future[Answer]:
        """Send a request to the agent; the future holds its answer, `LostError` or `MusterError`."""
        for name in (request.name, *arguments.get("words", ())):
            handler = HANDLERS.get(name)
            if handler in ON_DEMAND and handler.module not in self._sent:
                self._sent.add(handler.module)
                self.post(LOAD, late_source(name), words=[name])
        number = next(self._numbers)
        if not self._waiting:
            self._asked = time.monotonic()
        future: Future[Answer] = Future()
        self._waiting[number] = _Pending(request, future)
        since, began = max(self._heard, self._asked), time.monotonic()
        # The reader's thread notices a connection that is gone or closed (ValueError).
        with self._posting, contextlib.suppress(OSError, ValueError):
            write_frame(self.writer, {"do": request.name, "id": number, **arguments}, payload)
        if payload:  # a host that still receives cannot answer: the time of the write is no silence
            self._asked = max(self._asked, since + time.monotonic() - began)
        if self.lost:
            self._fail_all(self.lost)
        return future

    def ask(
        self, request: Request[Answer], payload: bytes = b"", *, seconds: float = 30.0, **arguments: Any
    ) -> Answer:
        """Send a request, and wait for the answer."""
        with waiting(hosts=[self.host]):
            return self.wait(self.post(request, payload, **arguments), seconds)

    def wait(self, future: Future[Answer], seconds: float, since: float | None = None) -> Answer:
        """The answer; `LostError` if none comes in time, or if the host is silent meanwhile.

        `since`: from when the seconds count (time.monotonic), if not from now.
        """
        deadline = (time.monotonic() if since is None else since) + seconds
        clocks = Clocks(now(), time.monotonic())
        while True:
            with contextlib.suppress(FutureTimeoutError):  # the built-in one only since Python 3.11
                return future.result(max(0.0, min(deadline - time.monotonic(), POLL_SECONDS)))
            last, clocks = clocks, Clocks(now(), time.monotonic())
            if standstill(last, clocks):
                self.excuse_silence()  # Ctrl-Z, a closed lid
            # All hosts are judged together, which costs too much to do it at each turn for each of them.
            late = self.silent_for() > SILENCE_SECONDS - TOGETHER_SECONDS
            if late and (loss := self.silence().get(self.host)) and not future.done():
                self.give_up()
                raise loss
            if not future.done() and (stuck := self.is_stuck()):
                self.give_up()
                text = f"its agent has been busy for {stuck:.0f} s and did nothing"
                raise LostError(text, STUCK, host=self.host)
            if not future.done() and time.monotonic() >= deadline:
                raise LostError(f"no answer within {seconds:.0f} s", FROZEN, host=self.host)

    def _stay_lost(self) -> Channel:
        raise self.lost or LostError("no way to connect again", host=self.host)

    def _own_silence(self) -> Mapping[str, SilentError]:
        return losses({self.host: Sign(self.silent_for(), self.greeted, self.remote)})

    @property
    def ended(self) -> bool:
        """Whether the connection has ended, which is reported too."""
        return self.lost is not None

    def give_up(self) -> None:
        """Wait no longer for this host, not even when the connection is closed."""
        self._given_up = True

    def silent_for(self) -> float:
        """Seconds since the last sign of life; zero when no request is pending."""
        return time.monotonic() - max(self._heard, self._asked) if self._waiting else 0.0

    def is_stuck(self) -> float:
        """The seconds for which the agent has not worked on a long request that is due; 0 if it works."""
        oldest = next((pending.request for pending in [*self._waiting.values()]), None)  # it answers in order
        seconds = (oldest and oldest.stuck_after) or 0.0
        return seconds if seconds and time.monotonic() - max(self._worked, self._asked) > seconds else 0.0

    def excuse_silence(self) -> None:
        """Count the silence of this host from now on: this process has not listened."""
        self._asked = time.monotonic()

    def report(self, report: Report) -> None:
        """Queue a report of the driver among those of the host."""
        self._events.put(Event(self.host, report), wait=False)

    def report_to(self, events: Inbox) -> None:
        """Put reports into another queue from now on."""
        self._events, self.planned = events, frozenset()

    def set_clock(self) -> None:
        """Note the offset of the host's steady clock, which does not change when the time of day is set."""
        self.clock_offset = -self.measure_clock(steady=True)[0]

    def measure_clock(self, *, steady: bool = False) -> tuple[float, float]:
        """The offset of the host's clock, and its uncertainty in s. `steady`: as of `measure_offset`."""
        return measure_offset(lambda: self.ask(TIME, seconds=10.0), steady=steady)

    def close(self) -> None:
        """Close the connection; the agent ends what it has started. Wait for that unless it was given up."""
        self._pipe.close(patient=not self._given_up)

    # -- the reader's thread --

    def _read(self) -> None:
        reader, noise, malformed = _Lines(self._pipe.reader), None, ""
        try:
            noise = await_greeting(reader)
            self.greeted, self._heard = True, time.monotonic()
            while not noise and (received := read_frame(reader, MOST_LINE, self._room)):
                self._heard = time.monotonic()
                self._take(*received, reader.length)
        except OSError:
            pass  # the connection is gone
        except MALFORMED as error:
            malformed = str(error)
        self.lost = self._explain(noise, malformed)
        self._fail_all(self.lost)
        self._events.put(Event(self.host, Lost(self.lost)), wait=False)
        # Our agent ends its job then. Another program is not ended by a lifeline, and cannot report any more.
        if malformed or (noise and noise.endless):
            self.give_up()
            self._pipe.close(patient=False)

    def _room(self, frame: Frame) -> int:
        """The bytes that may follow a frame: as many as were requested."""
        pending = self._waiting.get(frame["reply"]) if type(frame.get("reply")) is int else None
        return pending.request.room if pending else room(frame)

    def _take(self, frame: Frame, payload: bytes, size: int) -> None:
        if "reply" in frame:
            self._answer(frame, payload)
            self._worked = self._heard
        elif frame.get("event") == BUSY:
            if (cpu := frame.get("cpu", self._cpu)) != self._cpu:  # a new thread begins at 0
                self._cpu, self._worked = cpu, self._heard
        else:
            report = of_frame(frame, payload)
            self._require_answers(size + len(payload) + OVERHEAD)
            self._events.put(Event(self.host, report, size + len(payload)))
            return
        self._answered, self._unanswered = time.monotonic(), 0

    def _require_answers(self, size: int) -> None:
        """ValueError for a host that keeps reporting, and never answers."""
        self._unanswered = self._unanswered + size if self._waiting else 0
        late = time.monotonic() - max(self._answered, self._asked)
        if self._unanswered > MOST_UNANSWERED and late > SILENCE_SECONDS:
            raise ValueError(f"{self._unanswered >> 20} MiB of reports, and no answer for {late:.0f} s")

    def _answer(self, frame: Frame, payload: bytes) -> None:
        number = frame["reply"]
        pending = self._waiting.get(number) if type(number) is int else None
        if pending is None:
            raise ValueError("an answer without a request")
        if "error" in frame:
            text = frame["error"]
            if not isinstance(text, str) or len(text) > MOST_ERROR:
                raise ValueError("an error that is not text")
            del self._waiting[number]
            line = "; ".join(filter(None, map(str.strip, text.splitlines())))  # more could pass for ours
            pending.future.set_exception(MusterError(harmless(line), host=self.host))
        else:
            answer = pending.request.read(frame, payload)
            pending.request.require_own(answer, self.planned)
            del self._waiting[number]
            pending.future.set_result(answer)

    def _fail_all(self, reason: LostError) -> None:
        while self._waiting:
            with contextlib.suppress(KeyError):
                _, pending = self._waiting.popitem()
                pending.future.set_exception(reason)

    def _explain(self, noise: Noise | None, malformed: str) -> LostError:
        """Why the connection has ended."""
        if malformed:
            text = f"protocol error: {malformed}"
            return LostError(text, DISTRUST, kind="host.protocol-error", host=self.host)
        if noise and noise.endless:
            text = f"its agent did not start, and 1 MiB of other output came: {noise.last_line}"
            return LostError(text, NOISY, kind="ssh.shell-noisy", host=self.host)
        error = self._pipe.last_words(noise.last_line if noise else "")
        if is_swallowed(error.text):
            return LostError(SWALLOWED, KEEP_OUT, kind="ssh.shell-reads", host=self.host)
        remedy = remedy_of(error.text) or error.remedy
        return type(error)(error.text, remedy, kind=error.kind, host=self.host)
