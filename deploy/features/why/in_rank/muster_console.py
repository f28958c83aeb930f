"""Answers questions about a rank inside it: the value of an expression, its stack, its modules.

muster_start.py loads this when a process connects to the Unix socket `console-RANK` in the agent's private
folder. It answers only processes of the same user, in lines of JSON.

An expression is evaluated in a new thread, with the variables that the main thread's frames have at that
moment. The program continues meanwhile. Assignments do not reach it: names live in a copy, and only their
objects are the program's own.

A mistake in here must not reach the program. Standard library only, Python 3.9.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import json
import os
import reprlib
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

MOST_LINE = 1 << 16  # bytes of a request
MOST_TEXT = 1 << 14  # characters of an answer
MOST_FRAMES = 200
INTERRUPT_SECONDS = 0.5  # for a thread that is interrupted; the agent waits 2 s longer than the limit
_RECORDER = "<the recorder of muster>"  # muster_ring.RECORDER
_STDLIB = os.path.dirname(os.__file__) + os.sep
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_FOREIGN = ("/torch/", "/site-packages/", "/dist-packages/")


class TooLongError(BaseException):
    """Raised in a thread that has evaluated for too long; no `except Exception` of the program stops it."""


def converse(descriptor: int) -> None:
    """Answer the process at the other end of a connection, if it is of the same user, in a new thread."""
    connection = socket.socket(fileno=descriptor)
    threading.Thread(target=_serve, args=(connection,), daemon=True).start()


def _serve(connection: socket.socket) -> None:
    with contextlib.suppress(Exception), _ended(connection), connection.makefile("rwb") as stream:
        if _user_of(connection) != os.geteuid():
            return
        request = json.loads(stream.readline(MOST_LINE))
        if request["do"] == "eval":
            send(stream, evaluate(request["expression"], request["code"], request["seconds"]))
        elif request["do"] == "stack":
            send(stream, {"frames": stack(request["code"])})
        elif request["do"] == "modules":
            send(stream, modules())


@contextlib.contextmanager
def _ended(connection: socket.socket) -> Iterator[None]:
    """End the connection afterwards, also where a child that the program has forked holds a copy of it."""
    with connection:
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def modules() -> dict[str, Any]:
    """The file of each module that is loaded, empty for one without; and whether one is being imported."""
    specs = {name: getattr(module, "__spec__", None) for name, module in list(sys.modules.items())}
    return {
        "modules": {name: str(getattr(spec, "origin", None) or "") for name, spec in specs.items()},
        "importing": any(getattr(spec, "_initializing", False) for spec in specs.values()),
    }


def _user_of(connection: socket.socket) -> int:
    """The user of the process at the other end (struct ucred, unix(7))."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def send(stream: Any, frame: dict[str, Any]) -> None:
    """Write one line of JSON."""
    stream.write(json.dumps(frame).encode() + b"\n")
    stream.flush()


# -- evaluating --


def evaluate(expression: str, code: str, seconds: float) -> dict[str, str]:
    """The value of an expression as text, or the error that it raised; `at`: the line of the program."""
    frames = program_frames(code)
    at = location(frames[0], code) if frames else ""

    def act() -> dict[str, str]:
        try:
            value = eval(compile(expression.strip(), "<eval>", "eval"), namespace(frames))  # noqa: S307
            return {"at": at, "value": shown(value)}
        except TooLongError:
            raise
        except BaseException as error:  # noqa: BLE001  # an error of the user's expression is the answer
            return {"at": at, "error": named(error)}

    answer, late = bounded(act, seconds)
    return answer or {"at": at, "error": late}


def bounded(act: Callable[[], Any], seconds: float) -> tuple[Any, str]:
    """The result of a function in a new thread; None and the reason if it takes too long, or ends the thread.

    It is interrupted at its next line of Python. A function of C that runs on cannot be interrupted.
    """
    done: list[Any] = []
    worker = threading.Thread(target=_work, args=(act, done), name="muster-eval", daemon=True)
    worker.start()
    worker.join(seconds)
    late = f"it took longer than {seconds:g} s and was interrupted"
    if worker.is_alive() and worker.ident is not None:
        exception = ctypes.py_object(TooLongError)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident), exception)
        worker.join(INTERRUPT_SECONDS)
        if worker.is_alive():
            late = f"it took longer than {seconds:g} s, and is in a function of C that cannot be interrupted"
            late += _gpu_note()
    return (done[0], "") if done else (None, late)


def _gpu_note() -> str:
    """What a thread may wait for, in a program that uses a GPU."""
    cuda = sys.modules.get("torch.cuda")
    with contextlib.suppress(Exception):
        if cuda and cuda.is_initialized():
            return "; the value of a tensor on a GPU waits for the GPU's work so far, its shape does not"
    return ""


def _work(act: Callable[[], Any], done: list[Any]) -> None:
    with contextlib.suppress(BaseException):
        done.append(act())


def shown(value: object) -> str:
    """The value as text of bounded size; of long lists and texts the first part."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother, short.maxlong = 6, MOST_TEXT, MOST_TEXT, 1000
    short.maxlist = short.maxtuple = short.maxdict = short.maxset = short.maxfrozenset = 200
    short.maxarray = short.maxdeque = 200
    return short.repr(value)[:MOST_TEXT]


def named(error: BaseException) -> str:
    """`NameError: name 'lss' is not defined`."""
    return f"{type(error).__name__}: {error}"[:MOST_TEXT]


# -- the frames of the program --


def program_frames(code: str) -> list[FrameType]:
    """The main thread's frames of the user's files, innermost first; `code`: the folder of these files.

    Where none is in that folder, those that are neither Python's nor of an installed package; else all.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    frames = []
    while frame:
        frames.append(frame)
        frame = frame.f_back
    written = [frame for frame in frames if not _is_foreign(_file(frame))]
    folders = (code + os.sep, os.path.realpath(code) + os.sep)
    return [frame for frame in written if _file(frame).startswith(folders)] or written or frames


def _file(frame: FrameType) -> str:
    name = frame.f_code.co_filename
    return name if name.startswith("<") else os.path.abspath(name)


def _is_foreign(path: str) -> bool:
    """Whether a file is Python's, an installed package's, or one of these."""
    return path.startswith(("<", _STDLIB, _HERE)) or any(part in path for part in _FOREIGN)


def stack(code: str) -> list[list[Any]]:
    """The main thread's frames, innermost first: function, file, line, whether it is of the user's files.

    For hosts without py-spy, or where it may not read. Files are named as by py-spy.
    """
    folders = sorted({os.path.abspath(path) + os.sep for path in sys.path}, key=len, reverse=True)
    own = (code + os.sep, os.path.realpath(code) + os.sep)
    frames: list[list[Any]] = []
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame and len(frames) < MOST_FRAMES:
        path = _file(frame)
        short = next((path[len(folder) :] for folder in folders if path.startswith(folder)), path)
        if path != _RECORDER:  # it stands between the program and torch
            frames.append([frame.f_code.co_name, short[-400:], frame.f_lineno, path.startswith(own)])
        frame = frame.f_back
    return frames


def namespace(frames: Sequence[FrameType]) -> dict[str, Any]:
    """All names of these frames: the innermost frame's first, then its callers', then global ones.

    It is one dictionary, so that a comprehension or a lambda has the names of the expression.
    """
    names: dict[str, Any] = {"__builtins__": builtins}
    for frame in reversed(frames):
        names.update(frame.f_globals)
    for frame in reversed(frames):
        if frame.f_code.co_name != "<module>":
            names.update(_locals(frame))
    return names


def _locals(frame: FrameType) -> dict[str, Any]:
    """A frame's variables; its thread runs, and may remove one while they are read."""
    for _ in range(5):
        with contextlib.suppress(KeyError, RuntimeError):
            return dict(frame.f_locals)
    return {}


def location(frame: FrameType, code: str) -> str:
    """`train (train.py:88)`."""
    path = _file(frame)
    for folder in (code + os.sep, os.path.realpath(code) + os.sep):
        path = path[len(folder) :] if path.startswith(folder) else path
    return f"{frame.f_code.co_name} ({path}:{frame.f_lineno})"[-400:]
