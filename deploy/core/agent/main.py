"""The agent of one host: starts the job's commands, reports over stdio, and leaves nothing behind.

The driver sends this package to the node's own Python over SSH; nothing but the standard library is needed
(Python 3.9 or newer, Linux). The agent is a child subreaper: all processes of its commands stay below it, so
that ending a job is a walk of the process tree and never a search by name. Its lifeline is its standard
input: when that closes, the job on this host ends.

Requests have "do" and are answered in order with "reply"; events have "event" and come at any time.
Ranks (`rank.py`) and mpirun's remote shell (`rsh.py`) of this host talk to the agent over a Unix socket.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from ..wire.clock import steady
from ..wire.frames import Frame, Readable, Writable, read_frame, write_frame
from ..wire.handler import Handler
from ..wire.os_errors import explain
from ..wire.paths import MusterPaths
from ..wire.protocol import AT_START, ERRORS, HANDLERS, NEEDS, ON_DEMAND, QUICK, TERM_TO_RANKS, WORDS

# While the agent works on a request, it reports this often that it is busy: the driver gives up a host that
# is silent (core/connect/channel.py).
BUSY_SECONDS = 2.0
SUSPICIOUS_SECONDS = 5.0  # a request that takes longer may wait for a disk that does not answer
WAKE_SECONDS = 0.02
# ImportError: Python was replaced while the job runs, and the module of a request cannot be loaded any more.
REFUSALS = (OSError, ImportError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError)


class Agent:
    """Answers the driver's requests and reports what happens on this host."""

    def __init__(self, inbox: Readable, outbox: Writable) -> None:
        self.inbox, self.outbox = inbox, outbox
        self._writing = threading.Lock()
        # Open MPI does not start without HOME. A scheduler may give none, and a driver that has none.
        home = os.environ.setdefault("HOME", os.path.expanduser("~"))
        self._muster_root = MusterPaths.of_home(home).root
        self.handlers = Handlers(self._muster_root, self)
        self._worker = Worker(self.answer)
        self._probe: Any = None
        self._at_work = threading.Event()

    def serve(self) -> None:
        """Answer requests until the lifeline closes; then end everything that was started."""
        threading.Thread(target=self._report_busy, daemon=True).start()
        try:
            while True:
                received = read_frame(self.inbox, room=self._begin)
                if received is None:
                    break
                request, payload = received
                answer = self._answer_in_time(request, payload)
                if answer is None:
                    break
                self.send(answer, answer.pop("payload", b""))
                self._at_work.clear()
        finally:
            self._close()

    def _answer_in_time(self, request: Frame, payload: bytes) -> Frame | None:
        """The reply to a request, also if the disk of the home does not answer: pings must be answered.

        This thread uses no disk, so that a closed lifeline (None) and a signal end the job all the same.
        """
        if request["do"] in QUICK:
            return self.answer(request, payload)
        self._worker.begin(request, payload)
        while (answer := self._worker.answer_within(SUSPICIOUS_SECONDS)) is None:
            if is_closed(self.inbox):
                return None
            if disk := self._silent_disk():
                self._worker = Worker(self.answer)
                return refusal(request, disk)
        return answer

    def _silent_disk(self) -> str:
        """The error of the home's disk, if it does not answer."""
        from .disks import Probe, unanswered

        self._probe = self._probe or Probe(self._muster_root)
        disk = self._probe.silent_disk()
        return unanswered(disk) if disk else ""

    def _begin(self, request: Frame) -> int:
        """Note the start of a request. Its payload may have any size, and may take long to arrive."""
        self._at_work.set()
        return sys.maxsize

    def _report_busy(self) -> None:
        while self._at_work.wait():
            time.sleep(BUSY_SECONDS)
            if self._at_work.is_set():  # the same request, or a later one
                # The processor time of the thread that answers: constant where a disk does not answer.
                self.send({"event": "busy", "cpu": self._worker.cpu()})

    def answer(self, request: Frame, payload: bytes) -> Frame:
        """The reply to a request. An error goes back to the driver as text, never as a traceback."""
        do = request["do"]
        try:
            answer: Frame = getattr(self.handlers.of(do), f"do_{do}")(request, payload)
            return {"reply": request["id"], **answer}
        except REFUSALS as error:
            return refusal(request, explain(error))

    def do_time(self, request: Frame, payload: bytes) -> Frame:
        """The time of day, and of the monotonic clock."""
        return {"time": time.time(), "steady": steady()}

    def do_load(self, request: Frame, payload: bytes) -> Frame:
        """Begin to import the handlers that answer these requests; their modules may come with this one."""
        for finder in sys.meta_path if payload else ():
            if hasattr(finder, "add"):  # core/agent/importer.py
                finder.add(json.loads(zlib.decompress(payload)))
        modules = [HANDLERS[word].module for word in request["words"]]
        threading.Thread(target=_import, args=(modules,), daemon=True).start()
        return {}

    def send(self, frame: Frame, payload: bytes = b"") -> None:
        """Write one frame to the driver; the lifeline, not this, shows when the driver is gone."""
        with self._writing, contextlib.suppress(OSError, ValueError):
            write_frame(self.outbox, frame, payload)

    def _close(self) -> None:
        """End the processes, and remove temporary files; the job itself first."""
        on_signals(signal.SIG_IGN)  # a second signal would break this off
        self.handlers.close()
        if "subprocess" in sys.modules:  # some handler may have started something
            from .processes import end_descendants

            end_descendants()


class Handlers:
    """Loads each handler at its first request: loading all would dominate the time of a single request."""

    def __init__(self, muster_root: str, agent: Agent) -> None:
        self._muster_root, self._send = muster_root, agent.send
        self._loaded: dict[str, Any] = {"Agent": agent}
        self._loading = threading.RLock()

    def of(self, request: str) -> Any:
        """The handler that answers a request; KeyError if there is none."""
        return self._load(HANDLERS[request])

    def of_word(self, word: str) -> Any:
        """The handler of the job that answers a word of the local socket; KeyError if there is none."""
        return self._load(WORDS[word])

    def of_job(self) -> list[Any]:
        """The handlers of the job that are loaded, in the order of the table."""
        kinds = (handler.kind for handler in (*AT_START, *ON_DEMAND) if handler.needs == "job")
        return [self._loaded[kind] for kind in kinds if kind in self._loaded]

    def _load(self, handler: Handler) -> Any:
        with self._loading:
            if handler.kind not in self._loaded:
                module = importlib.import_module(f"muster.deploy.{handler.module}")
                arguments = map(self._argument, handler.needs.split())
                self._loaded[handler.kind] = getattr(module, handler.kind)(*arguments)
            return self._loaded[handler.kind]

    def pass_on(self, number: int) -> bool:
        """Pass a signal of the user or a scheduler on to the ranks here; returns whether there are any."""
        supervisor = self._loaded.get("JobSupervisor")
        return bool(supervisor and supervisor.signal_ranks(number))

    def close(self) -> None:
        """Close the handlers that have processes or temporary files; the job first."""
        for _, handler in sorted(self._loaded.items(), key=lambda item: item[0] != "JobSupervisor"):
            if hasattr(handler, "close"):
                handler.close()

    def _argument(self, name: str) -> object:
        if name == "send":
            return self._send
        if name == "handlers":
            return self
        if request := NEEDS.get(name):
            return self.of(request)
        from pathlib import Path

        return Path(self._muster_root) if name == "muster_root" else Path(self._muster_root, name)


def _import(modules: list[str]) -> None:
    with contextlib.suppress(Exception):  # the request that needs the module gets the reason
        for module in modules:
            importlib.import_module(f"muster.deploy.{module}")


class Worker:
    """A thread that answers one request at a time. One that waits for a disk is left and replaced.

    The thread never ends: its end would kill the processes that it has started (PR_SET_PDEATHSIG).
    """

    def __init__(self, answer: Callable[[Frame, bytes], Frame]) -> None:
        self._answer = answer
        self._requests: SimpleQueue[tuple[Frame, bytes]] = SimpleQueue()
        self._answers: SimpleQueue[Frame | BaseException] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cpu(self) -> float:
        """The processor time of the thread, in seconds."""
        return time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident or 0))

    def begin(self, request: Frame, payload: bytes) -> None:
        self._requests.put((request, payload))

    def answer_within(self, seconds: float) -> Frame | None:
        """The answer, if it is ready within this time. Raises the exception of the request."""
        try:
            answer = self._answers.get(timeout=seconds)
        except Empty:
            return None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _run(self) -> None:
        while True:
            self._answers.put(self._attempt(*self._requests.get()))

    def _attempt(self, request: Frame, payload: bytes) -> Frame | BaseException:
        try:
            return self._answer(request, payload)
        except BaseException as error:  # noqa: BLE001  # the main thread raises it again
            return error


def is_closed(inbox: Any) -> bool:
    """Whether the other end of this pipe or socket is closed, even if something is left to read."""
    poll = select.poll()
    poll.register(inbox.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def refusal(request: Frame, text: str) -> Frame:
    """The reply to a request that failed, with the reason."""
    failure = ERRORS.get(request["do"])
    return {"reply": request["id"], "error": f"{failure}: {text}" if failure else text}


def on_signals(action: Any) -> None:
    """Do this at a signal that ends an agent."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, action)


def wake_for_signals() -> None:
    """Let a signal interrupt the main thread, also one that comes just before it waits in a call.

    A handler of Python runs in that thread, and otherwise after the call.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGURG, lambda number, frame: None)
    main_thread = threading.get_ident()

    def wake() -> None:
        while numbers := os.read(reader, 64):
            if {*numbers} != {signal.SIGURG}:
                time.sleep(WAKE_SECONDS)
                signal.pthread_kill(main_thread, signal.SIGURG)

    threading.Thread(target=wake, daemon=True).start()


def main() -> None:
    """Serve the driver on stdin and stdout; SIGTERM, SIGINT and SIGHUP end it as a closed lifeline does.

    SIGUSR1 and SIGUSR2 are for the ranks. So is SIGTERM with `TERM_TO_RANKS` among the arguments.
    """

    def end(number: int, frame: object) -> None:
        if number == signal.SIGTERM and TERM_TO_RANKS in sys.argv and agent.handlers.pass_on(number):
            return
        on_signals(signal.SIG_IGN)
        raise SystemExit(128 + number)

    os.umask(os.umask(0o077) & 0o077)  # a umask that takes rights from the user would close our folders to us
    agent = Agent(sys.stdin.buffer, sys.stdout.buffer)
    wake_for_signals()
    on_signals(end)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, frame: agent.handlers.pass_on(number))
    agent.serve()


if __name__ == "__main__":
    main()
