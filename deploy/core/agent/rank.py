"""Wraps one rank: keeps its output and its end, and works the same under mpirun and torchrun.

Usage: ``rank.py ARG ...`` runs ``python ARG ...`` with its own Python. A launcher starts it below the host's
agent as ``muster-rank``, found on PATH: the right file on every host. The output goes byte for byte to
``logs/rank-0007@node2.{out,err}`` on this host, and line by line to the agent; the end, with the last lines
and the time, to ``logs/rank-0007@node2.json``. Exits as the program does (128 + n for signal n).
Standard library only, run by ``python -IS``: every rank pays for its imports. Once the program runs, nothing
is imported and no codec is looked up, as by `open` for text: Python may have been replaced by then.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO, NoReturn, Protocol

PR_SET_PDEATHSIG, PR_SET_PTRACER = 1, 0x59616D61  # prctl(2)
LAST_SECONDS = 10.0  # at the end, to pass on the rest of the output; children may print forever
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
HELD = (signal.SIGUSR1, signal.SIGUSR2)  # until the program has a handler: their default action ends it
HELD_SECONDS = 0.1  # between two looks for the handler

TAIL_LINES, TAIL_WIDTH = 40, 2048  # the log has every line in full
LONGEST_LINE = 1 << 16  # a longer line is passed on in pieces
LEFT_BEHIND_SECONDS = 1.0  # for output of a program's children after its end
MOST_UNWRITTEN = 1 << 22  # bytes of a stream that wait for this host's disk
SILENT_DISK_SECONDS = 5.0  # without a byte written: such a disk is given up
SILENT_NOTE = b"\n[the rest is only where the job was launched: this disk did not answer]\n"

Send = Callable[["dict[str, Any]"], None]


class Log:
    """A log file on this host, which may end early. A separate thread writes it.

    A disk that is full, or does not answer, must not stop the reading of the program's pipe: the program
    would wait for space in it. The driver still gets the whole output, and the reason why the file ends.
    """

    def __init__(self, path: str, send: Send) -> None:
        self._path, self._send = path, send
        self._parts: collections.deque[bytes] = collections.deque()
        self._changed = threading.Condition()
        self._unwritten, self._quiet_since, self._ended = 0, 0.0, False
        threading.Thread(target=self._write_all, daemon=True).start()

    def write(self, content: bytes) -> None:
        """Queue content for the file. This waits for a slow disk, and gives up one that writes nothing."""
        with self._changed:
            self._await(MOST_UNWRITTEN)
            if content and not self._ended:
                if not self._unwritten:
                    self._quiet_since = time.monotonic()
                self._parts.append(content)
                self._unwritten += len(content)
                self._changed.notify_all()

    def begin_close(self) -> None:
        """Write the rest, and then close the file."""
        with self._changed:
            self._parts.append(b"")
            self._unwritten += 1
            self._quiet_since = time.monotonic()
            self._changed.notify_all()

    def close(self) -> None:
        """Wait until the file is closed, unless the disk does nothing."""
        with self._changed:
            self._await(0)

    def _await(self, most: int) -> None:
        """Wait until only so many bytes are unwritten; end the file if its disk does nothing for a time."""
        while self._unwritten > most and not self._ended:
            left = self._quiet_since + SILENT_DISK_SECONDS - time.monotonic()
            if left <= 0:
                self._end(None)
            else:
                self._changed.wait(left)

    def _end(self, errno: int | None) -> None:
        """Write no more. `errno`: None for a disk that does not answer."""
        self._ended = True
        self._parts.clear()
        self._send({"event": "log-ended", "path": self._path, "errno": errno})

    def _write_all(self) -> None:
        try:
            with open(self._path, "ab", buffering=0) as file:
                while part := self._next():
                    while part:  # a disk that is nearly full accepts a part of it before the error
                        count = file.write(part)
                        part = part[count:]
                        self._note(count)
                if self._ended:
                    file.write(SILENT_NOTE)
            self._note(1)  # some network file systems report only at the end that the quota is used up
        except OSError as error:
            with self._changed:
                if not self._ended:
                    self._end(error.errno)
                self._changed.notify_all()

    def _next(self) -> bytes:
        """The next part; empty at the end."""
        with self._changed:
            while not self._parts and not self._ended:
                self._changed.wait()
            return b"" if self._ended else self._parts.popleft()

    def _note(self, count: int) -> None:
        with self._changed:
            self._unwritten -= count
            self._quiet_since = time.monotonic()
            self._changed.notify_all()


def pump(
    source: BinaryIO,
    log: Log,
    name: str,
    send: Send,
    tail: collections.deque[str],
    *,
    over: int,
    quiet: threading.Event,
) -> None:
    r"""Copy a stream to the agent in whole lines (ended by \n or \r), and byte for byte to its file.

    `quiet` is set at its end, or earlier when the program has ended and nothing more comes.
    """
    pending = b""
    for chunk in chunks(source, over):
        whole, pending = whole_lines(pending + chunk, flush=not chunk)
        if whole:
            text = whole.decode(errors="surrogateescape")
            tail.extend(line[-TAIL_WIDTH:] for line in text.splitlines(keepends=True)[-TAIL_LINES:])
            send({"event": "output", "stream": name, "text": text})
        log.write(chunk)
        if not chunk:
            quiet.set()


def chunks(source: BinaryIO, over: int) -> Iterator[bytes]:
    """The chunks of a stream as they come, and an empty one at its end, and when it is quiet.

    `over` can be read once the program has ended. Its output is in the pipe by then, but its children may
    hold the stream open without end; they would end by SIGPIPE if it was not read.
    """
    stream, until, chunk = source.fileno(), 0.0, b"begin"
    while chunk:
        ready, _, _ = select.select([stream, over], [], [])
        if stream not in ready:
            until = until or time.monotonic() + LEFT_BEHIND_SECONDS
            ready, _, _ = select.select([stream], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                yield b""
        chunk = os.read(stream, 1 << 16)
        yield chunk


def whole_lines(text: bytes, *, flush: bool) -> tuple[bytes, bytes]:
    """Split into whole lines and a rest; at the end, or if the rest is too long, the rest goes along."""
    end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
    if flush or len(text) - end > LONGEST_LINE:
        end = len(text)
    return text[:end], text[end:]


def position_of(environment: Mapping[str, str]) -> dict[str, int]:
    """Read this rank's position. torchrun's variables come first: its workers inherit an outer mpirun's."""
    if "TORCHELASTIC_RUN_ID" in environment:
        prefix, size = "", "WORLD_SIZE"
    else:
        prefix, size = "OMPI_COMM_WORLD_", "SIZE"
    return {
        "rank": int(environment[f"{prefix}RANK"]),
        "local_rank": int(environment[f"{prefix}LOCAL_RANK"]),
        "world_size": int(environment[f"{prefix}{size}"]),
        "local_world_size": int(environment[f"{prefix}LOCAL_{size}"]),
    }


class AgentConnection:
    """The connection to this host's agent; this rank ends with it."""

    def __init__(self, hello: dict[str, Any]) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(os.path.join(os.environ["MUSTER_AGENT"], "agent"))
        # struct ucred, unix(7): the process that listens there
        peer = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid: int = struct.unpack("3i", peer)[0]
        self._stream = self._socket.makefile("rwb")
        self._lock = threading.Lock()
        self.send(hello)
        self.job: dict[str, Any] = json.loads(self._stream.readline())

    def send(self, frame: dict[str, Any]) -> None:
        """Send one JSON line; `wait` notices when the agent is gone."""
        with self._lock, contextlib.suppress(OSError):
            self._stream.write(json.dumps(frame).encode() + b"\n")
            self._stream.flush()

    def wait(self) -> None:
        """Wait until the agent is gone; it sends nothing more."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.read(1)


def environment_of(
    job: Mapping[str, Any], ranks: Mapping[str, int], outer: Mapping[str, str], programs: str
) -> dict[str, str]:
    """The program's environment: the plan's, and torchrun's names for programs that need them.

    `outer`: that of this wrapper; `programs`: its folder.
    """
    names = {name.upper(): str(value) for name, value in ranks.items()}
    environment = {**outer, **names, **job["env"]}
    # `import muster.train` works in every rank. Our library comes last: it must not hide the user's modules.
    # Only our sitecustomize comes first; it runs the user's, and removes its folder from the path.
    hook = os.path.join(programs, "in_rank")
    paths = [hook, environment.get("PYTHONPATH", ""), os.path.join(job["folder"], "lib")]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def prepare_child(agent: int) -> None:
    """In the child, before exec: have the kernel kill it when this wrapper ends.

    The launcher ignores the signals for ranks; the program has their default action. The agent and its
    children may read the child's stack, also where Yama restricts that (`fab stacks`).
    """
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    libc.prctl(PR_SET_PTRACER, agent, 0, 0, 0)  # fails without Yama, where it is not needed


class Launcher:
    """The process that the launcher has started for this rank: it waits for the status (`stand_in`)."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid: int = struct.unpack("3i", peer)[0]

    def wait(self) -> None:
        """Wait until it has ended."""
        with contextlib.suppress(OSError):
            while self._connection.recv(1):
                pass

    def report(self, status: int) -> None:
        """Tell it how this wrapper ends."""
        with contextlib.suppress(OSError):
            self._connection.sendall(b"%d\n" % status)

    def release(self, status: int) -> None:
        """Tell it, and close its streams: a launcher waits until every process has closed them."""
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        os.close(nothing)
        self.report(status)


class Program(Protocol):
    """The process of the program of this rank: a `Popen`, or one that runs already."""

    pid: int
    stdout: Any
    stderr: Any

    def send_signal(self, number: int, /) -> None: ...
    def kill(self) -> None: ...
    def wait(self) -> int: ...


class Signals:
    """Passes signals on to the program: SIGTERM once, for agent and launcher may both send it.

    SIGUSR1 and SIGUSR2 wait until the program has a handler: their default action would end it.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.terminated = False
        """Whether SIGTERM was passed on, or the launcher has ended its process."""
        self._held: SimpleQueue[int] = SimpleQueue()
        threading.Thread(target=self._pass_on, daemon=True).start()

    def take(self, number: int) -> None:
        """Handle a signal to this wrapper."""
        if number in HELD:
            self._held.put(number)
        elif number != signal.SIGTERM:
            self._program.send_signal(number)
        elif not self.terminated:
            self.terminated = True
            self._program.send_signal(number)

    def end_with(self, launcher: Launcher) -> None:
        """Let the program end when the launcher has ended its process."""
        launcher.wait()
        self.take(signal.SIGTERM)

    def _pass_on(self) -> None:
        waiting: list[int] = []
        while True:
            with contextlib.suppress(Empty):
                waiting.append(self._held.get(timeout=HELD_SECONDS if waiting else None))
            for number in [number for number in waiting if self._is_handled(number)]:
                waiting.remove(number)
                self._program.send_signal(number)

    def _is_handled(self, number: int) -> bool:
        """Whether the program has a handler, or ignores the signal (proc(5): bit 0 is signal 1)."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{self._program.pid}/status", "rb") as file:
                status = file.read()
            masks = (status.partition(b"\n%s:" % name)[2].split()[0] for name in (b"SigCgt", b"SigIgn"))
            return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
        return False


def stand_in(wrapper: int, stream: BinaryIO) -> NoReturn:
    """Be the process of the launcher for a rank whose wrapper is another process, and end with its status.

    A launcher that gives up kills its processes after a moment (mpirun: 1 s, torchrun: 30 s). The wrapper and
    the program live on, so that the program can save; the agent ends them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)

    def forward(number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(wrapper, number)

    on_signals(forward)
    if not (status := stream.readline()):  # the wrapper was killed
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(int(status))  # without the end of Python, where signals have their default action


def on_signals(take: Callable[[int], None]) -> None:
    """Have a thread handle the signals of this process, in which every thread blocks them.

    A handler of Python runs in the main thread, which waits in a call: a signal that the kernel gives to
    another thread, or just before the call, would wait for the end of the call.
    """

    def handle() -> None:
        while True:
            take(signal.sigwait(FORWARDED))

    threading.Thread(target=handle, daemon=True).start()


def start(argv: list[str], agent: AgentConnection, ranks: Mapping[str, int]) -> subprocess.Popen[bytes]:
    """Start Python with these arguments."""
    programs = os.path.dirname(os.path.abspath(__file__))
    return subprocess.Popen(
        [sys.executable, *argv],
        cwd=agent.job["cwd"],
        env=environment_of(agent.job, ranks, os.environ, programs),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: prepare_child(agent.pid),  # no other thread runs yet
    )


def run(argv: list[str], launcher: Launcher, program: Program | None = None) -> None:
    """Run Python with these arguments to its end, and report its status to the launcher's process.

    `program`: its process, if it runs already.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # before the first thread: see `on_signals`
    ranks = position_of(os.environ)
    agent = AgentConnection({"hello": "rank", "pid": os.getpid(), "stand_in": launcher.pid, **ranks})
    label = os.path.join(os.path.realpath(agent.job["folder"]), "logs", agent.job["log"])
    tails: dict[str, collections.deque[str]] = {
        "out": collections.deque(maxlen=TAIL_LINES),
        "err": collections.deque(maxlen=TAIL_LINES),
    }
    try:
        child = program or start(argv, agent, ranks)
    except OSError as error:
        agent.send({"event": "output", "stream": "err", "text": f"{error}\n"})
        finish(agent, label, 127, [f"{error}\n"])
        launcher.report(127)
        return
    signals, gone = Signals(child), threading.Event()
    on_signals(signals.take)
    threading.Thread(target=signals.end_with, args=(launcher,), daemon=True).start()
    threading.Thread(target=end_with_agent, args=(agent, child, gone), daemon=True).start()
    over, ending = os.pipe()
    logs = {name: Log(f"{label}.{name}", agent.send) for name in tails}
    quiet = {name: threading.Event() for name in tails}
    pumps = [
        threading.Thread(
            target=pump,
            args=(stream, logs[name], name, agent.send, tails[name]),
            kwargs={"over": over, "quiet": quiet[name]},
            daemon=True,
        )
        for name, stream in (("out", child.stdout), ("err", child.stderr))
    ]
    for thread in pumps:
        thread.start()
    code = child.wait()
    ended, terminated = time.clock_gettime(time.CLOCK_BOOTTIME), signals.terminated
    os.close(ending)
    for event in quiet.values():
        event.wait(LAST_SECONDS)
    tail = list(tails["err"]) or list(tails["out"])
    at = over_at(child.pid, ended)
    alone = os.path.join(os.environ["MUSTER_AGENT"], f"world-of-one-{ranks['rank']}")  # sitecustomize.py
    marks = {"alone": os.path.exists(alone), "terminated": terminated}
    finish(agent, label, code, tail, at=at, marks=marks)
    status = code if code >= 0 else 128 - code
    while any(thread.is_alive() for thread in pumps) and not gone.is_set():
        launcher.release(status)  # what the program has left behind may print for long
        for thread in pumps:
            thread.join(LEFT_BEHIND_SECONDS)
    close(logs.values())
    launcher.report(status)


def over_at(pid: int, ended: float) -> float:
    """The time of the program's end, by in_rank/muster_program_end.py, or else that of its process.

    Its connections close some time before it has ended: peers that notice may end, and be reported, first.
    """
    path = os.path.join(os.environ["MUSTER_AGENT"], f"over-{pid}")
    with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
        if 0 <= (at := float(file.read(64))) <= ended:  # the program may have written it: nan is no time
            return at
    return ended


def finish(
    agent: AgentConnection,
    label: str,
    code: int,
    tail: list[str],
    *,
    at: float | None = None,
    marks: Mapping[str, bool] | None = None,
) -> None:
    """Send the exit record to the agent, and write it here if possible: the disk may be full or gone.

    `at`: when it failed or ended, by the clock of core/wire/clock.py; now, if the program never began.
    `marks`: what else is true of the end, as in `RankEnded` of core/connect/reports.py.
    """
    record = {"code": code, "time": time.time(), "tail": tail}
    record.update({name: True for name, is_true in (marks or {}).items() if is_true})
    at = time.clock_gettime(time.CLOCK_BOOTTIME) if at is None else at
    agent.send({"event": "rank-end", **record, "time": at})
    record_file = Log(f"{label}.json", lambda frame: None)
    record_file.write(json.dumps(record).encode())
    close([record_file])


def close(logs: Collection[Log]) -> None:
    """Close these logs when they are written."""
    for log in logs:
        log.begin_close()
    for log in logs:
        log.close()


def end_with_agent(agent: AgentConnection, child: Program, gone: threading.Event) -> None:
    """End the program when the agent is gone."""
    agent.wait()
    gone.set()
    child.kill()


def main(argv: list[str]) -> NoReturn:
    """Run the program, in a wrapper that is not the process of the launcher."""
    ours, theirs = socket.socketpair()
    if wrapper := os.fork():
        theirs.close()
        stand_in(wrapper, ours.makefile("rb"))
    ours.close()
    os.setsid()  # launchers signal the group of their process too
    run(argv, Launcher(theirs))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
