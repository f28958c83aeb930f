"""A console beside a running rank, and pdb that holds it. muster_console.py loads this on request.

The console runs statements in a new thread, with the variables of a frame of the main thread, while the
program continues. pdb begins in the main thread, between two lines of the program, and holds the program
until it is released. Both use `Wire`. Standard library only, Python 3.9.
"""

from __future__ import annotations

import codeop
import contextlib
import ctypes
import functools
import json
import pdb  # this is the debugger that the user has asked for
import select
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import muster_console as base
else:  # it has loaded this module, and is in sys.modules
    import muster_console as base

STATEMENT_SECONDS = 60.0
WRITE_CHARACTERS = 1 << 14
WATCH_MILLISECONDS = 500
HELP = """where    the stack of the main thread as it is now; names are then those of its innermost frame
up, down    to the frame that called, and back
locals    the variables of the frame
threads    the stack of every thread
quit    leave, as Ctrl-D does
Anything else is Python. The program continues meanwhile; what you assign stays in this console, what you
change in an object is changed in the program.
"""


class Wire:
    """The connection as a file: writes go to the user, and reading a line asks the user for it."""

    encoding = "utf-8"

    def __init__(self, stream: Any) -> None:
        self._stream, self.prompt = stream, ">>> "

    def write(self, text: str) -> int:
        """Send a text, in parts. If the user has left, it is lost: pdb must not fail in the program."""
        with contextlib.suppress(OSError, ValueError):
            for at in range(0, len(text), WRITE_CHARACTERS):
                base.send(self._stream, {"text": text[at : at + WRITE_CHARACTERS]})
        return len(text)

    def flush(self) -> None:
        """Every text is sent at once."""

    def isatty(self) -> bool:
        """No colours, no cursor."""
        return False

    def readline(self) -> str:
        """Ask for a line; an empty text if the user has left."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            base.send(self._stream, {"ask": self.prompt})
            line = self._stream.readline(base.MOST_LINE)
            return str(json.loads(line)["line"]) + "\n"
        return ""


def serve(connection: socket.socket, stream: Any, request: dict[str, Any]) -> None:
    """Serve the user until the connection ends."""
    wire = Wire(stream)
    if not request.get("hold"):
        Beside(wire, request["code"]).run()
    elif tracing.acquire(blocking=False):
        try:
            _hold(connection, wire, request["code"])
        finally:
            tracing.release()
    else:
        wire.write(f"{TRACED}\n")


class Beside:
    """A console that does not hold the program."""

    def __init__(self, wire: Wire, code: str) -> None:
        self._wire, self._code, self._at = wire, code, 0
        self._compile = codeop.CommandCompiler()
        self._commands: dict[str, Callable[[], None]] = {
            "where": self._where,
            "bt": self._where,
            "up": lambda: self._move(1),
            "down": lambda: self._move(-1),
            "locals": self._locals,
            "threads": self._threads,
            "help": lambda: self._write(HELP),
        }

    def run(self) -> None:
        """Read and run one statement after the other."""
        self._where()
        pending = ""
        while line := self._wire.readline():
            command = line.strip()
            if not pending and command in {"quit", "exit", "quit()", "exit()"}:
                return
            if not pending and command in self._commands:
                self._commands[command]()
                continue
            pending = self._take(pending + line)
            self._wire.prompt = "... " if pending else ">>> "

    def _take(self, source: str) -> str:
        """Run a statement if it is complete; else it is pending."""
        source = source if source.strip() else ""
        try:
            if source and self._compile(source[:-1], "<console>") is None:
                return source
        except (SyntaxError, ValueError, OverflowError) as error:
            self._write("".join(traceback.format_exception_only(type(error), error)))
            return ""
        if source and (late := base.bounded(lambda: self._run(source), STATEMENT_SECONDS)[1]):
            self._write(f"{late}\n")
        return ""

    def _run(self, source: str) -> bool:
        try:
            try:
                value = compile(source.strip(), "<console>", "eval")
            except SyntaxError:
                exec(compile(source, "<console>", "exec"), self._names)  # noqa: S102  # what the user asks for
                return True
            result = eval(value, self._names)  # noqa: S307
            if result is not None:
                self._names["_"] = result
                self._write(base.shown(result) + "\n")
        except base.TooLongError:
            raise
        except BaseException as error:  # noqa: BLE001  # it is shown to the user
            frames = traceback.extract_tb(error.__traceback__)[1:]
            self._write("".join(traceback.format_list(frames)) + base.named(error) + "\n")
        return True

    # -- the commands --

    def _where(self) -> None:
        self._frames = base.program_frames(self._code)
        for number, frame in reversed([*enumerate(self._frames)]):
            self._write(f"{number:3} {base.location(frame, self._code)}\n")
        self._choose(0)

    def _move(self, by: int) -> None:
        if not 0 <= self._at + by < len(self._frames):
            self._write("no frame of the program beyond this one\n")
            return
        self._choose(self._at + by)

    def _choose(self, at: int) -> None:
        self._at = at
        frames = self._frames[at:]
        if frames:
            self._write(f"in {base.location(frames[0], self._code)}\n")
        self._names = base.namespace(frames)
        self._names["print"] = functools.partial(print, file=self._wire)

    def _locals(self) -> None:
        for name, value in base.own_names(self._frames[self._at]) if self._frames else ():
            self._write(f"{name} = {base.shown(value)[:200]}\n")

    def _threads(self) -> None:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for number, frame in sys._current_frames().items():
            self._write(f"{names.get(number, number)}\n{''.join(traceback.format_stack(frame))}")

    def _write(self, text: str) -> None:
        self._wire.write(text)


# -- holding --


class Holder(pdb.Pdb):
    """pdb on the wire. `quit` releases the program, and does not end it."""

    def __init__(self, wire: Wire) -> None:
        # It begins in functions of these modules, and must hold the program, not them.
        skipped = ["bdb", "pdb", "contextlib", __name__]
        super().__init__(stdin=wire, stdout=wire, skip=skipped, nosigint=True, readrc=False)  # type: ignore[arg-type]
        self.use_rawinput = False
        wire.prompt, self.prompt = "(Pdb) ", ""
        self.over = threading.Event()

    def release(self) -> None:
        """Remove every breakpoint, and let the program run at full speed."""
        self.clear_all_breaks()
        self.set_continue()
        sys.settrace(None)
        self.over.set()

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Called by Python at each line; an error in pdb must not reach the program."""
        try:
            return super().trace_dispatch(frame, event, arg)
        except Exception:  # noqa: BLE001
            self.release()
            return None

    def do_quit(self, arg: str) -> bool:
        """q(uit): let the program continue without the debugger."""
        self.release()
        return True

    def do_continue(self, arg: str) -> bool | None:
        """c(ontinue): continue to the next breakpoint; without any, without the debugger."""
        if not self.breaks:
            return self.do_quit(arg)
        return super().do_continue(arg)

    do_q = do_exit = do_EOF = do_detach = do_quit  # noqa: N815  # pdb's names
    do_c = do_cont = do_continue


def _hold(connection: socket.socket, wire: Wire, code: str) -> None:
    holder, left = Holder(wire), threading.Event()
    if frames := base.program_frames(code):
        wire.write(f"in {base.location(frames[0], code)}, held at its next line\n")
    del frames

    def begin() -> None:
        if left.is_set():
            return
        frames = base.program_frames(code)
        holder.set_trace(frames[0])
        holder.set_next(frames[0])

    in_main_thread(begin)
    watched = select.poll()
    watched.register(connection, select.POLLRDHUP)
    while not holder.over.is_set():
        if watched.poll(WATCH_MILLISECONDS):
            left.set()
            in_main_thread(holder.release)
            return


tracing = threading.Lock()
"""Held while a debugger traces the program: a thread has one trace function."""
TRACED = "another debugger is attached to this rank"

_kept: list[Any] = []


def in_main_thread(act: Callable[[], None]) -> None:
    """Have the main thread call a function between two lines of the program, as soon as it is in Python."""

    def call(_: object) -> int:
        with contextlib.suppress(Exception):
            act()
        return 0

    pointer = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(call)
    _kept.append(pointer)  # the main thread may come to it much later
    ctypes.pythonapi.Py_AddPendingCall(pointer, None)
