"""A thread that answers requests. One that waits for a disk is left, and another one takes its place."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..common.frames import Frame

Answer = Callable[[Frame, bytes], Frame]


class Worker:
    """Answers one request at a time. The thread never ends: what it has started would be killed with it."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._asked, self._done = threading.Semaphore(0), threading.Event()
        self._request: tuple[Frame, bytes] = ({}, b"")
        self._result: Frame | BaseException = {}
        threading.Thread(target=self._run, daemon=True).start()

    def begin(self, request: Frame, payload: bytes) -> None:
        """Begin with a request."""
        self._request = (request, payload)
        self._done.clear()
        self._asked.release()

    def wait(self, seconds: float) -> bool:
        """Whether the answer is there within this time."""
        return self._done.wait(seconds)

    def result(self) -> Frame:
        """The answer. Raises what the request has raised."""
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result

    def _run(self) -> None:
        while True:
            self._asked.acquire()
            try:
                self._result = self._answer(*self._request)
            except BaseException as error:  # noqa: BLE001  # the main thread raises it again
                self._result = error
            self._request = ({}, b"")
            self._done.set()
