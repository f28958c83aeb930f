"""Records a rank's calls of torch.distributed in a small file that its agent can read at any time.

muster_start.py loads this when the program imports torch.distributed. From the start of the process group on,
each collective and message of the rank is noted in the file `ring-RANK` of the agent's private folder
(muster_ring.py), and torch's own server, where torch has one, answers on the Unix socket `torch-RANK` there.
Also recorded are the backward passes of DistributedDataParallel, whose C++ starts collectives without a call
in Python.

A mistake in here must not reach the program: after an error, a call is missing in the record.
Standard library only, Python 3.9.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

if TYPE_CHECKING:
    from .muster_ring import BEGUN, DONE, FAILED, RECORDER, WAITED, Group, Ring, quoted
else:  # in a rank, it lies beside this file
    from muster_ring import BEGUN, DONE, FAILED, RECORDER, WAITED, Group, Ring, quoted

MOST_TEXTS = 4096


class CallArguments:
    """The arguments of a call, by their names."""

    __slots__ = ("_args", "_kwargs", "_positions")

    def __init__(self, positions: dict[str, int], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self._positions, self._args, self._kwargs = positions, args, kwargs

    def __call__(self, name: str) -> Any:
        position = self._positions.get(name)
        if position is not None and position < len(self._args):
            return self._args[position]
        return self._kwargs.get(name) if self._kwargs else None


def positions_of(function: Any) -> dict[str, int]:
    """The position of each argument that may be positional."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = function.__code__
    return {name: position for position, name in enumerate(code.co_varnames[: code.co_argcount])}


class CallTexts:
    """The descriptions of collectives and messages, as parts of slots. A loop makes each of them once."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], tuple[bytes, Any]] = {}
        """Each with the code that has made the call, so that no other code gets its address."""

    def text(self, op: str, file: str, frame: FrameType | None, tensors: Any, extra: bytes = b"") -> bytes:
        """`file`: the short name of that of the frame; `tensors`: one, several or none."""
        first, elements = tensors, 0
        if hasattr(tensors, "numel"):
            elements = tensors.numel()
        else:
            each = list(tensors or ())
            first = each[0] if each else None
            elements = sum([tensor.numel() for tensor in each])
        dtype = None if first is None else first.dtype
        code, at = (frame.f_code, frame.f_lasti) if frame else (None, 0)
        key = op, id(code), at, dtype, elements, extra
        made = self._made.get(key)
        if made is None:
            size = elements * first.element_size() if elements else 0
            line = f"{file}:{frame.f_lineno}" if frame else ""
            if len(self._made) >= MOST_TEXTS:  # for example the sizes of ragged batches
                self._made.clear()
            text = _text(op, line, str(dtype)[6:] if dtype else "", elements, size) + extra + b"}\n"
            made = self._made[key] = text, code
        return made[0]


def _text(op: str, line: str, dtype: str, elements: int, size: int) -> bytes:
    text = b'"op":%s,"where":%s,"dtype":%s,"elements":%d,"bytes":%d'
    return text % (quoted(op, 40), quoted(line, 100, last=True), quoted(dtype, 16), elements, size)


# -- rendezvous --


def meeting(call: CallArguments) -> bytes:
    """Where `init_process_group` meets, of how many ranks, and as which: `,"meets":["node1:29500",3,0]`.

    As torch takes them: from its arguments, the query of its URL, or the environment. Empty for values that
    torch refuses.
    """
    try:
        return _find_meeting(call)
    except (TypeError, ValueError):
        return b""


def _find_meeting(call: CallArguments) -> bytes:
    if call("store") is not None:
        return _meeting("", call("world_size"), call("rank"))
    url = urlsplit(call("init_method") or "env://")
    query = dict(parse_qsl(url.query))
    size, rank = (_given(call(name), query.get(name)) for name in ("world_size", "rank"))
    if url.scheme == "file":
        return _meeting(url.path, size, rank)
    if url.scheme == "tcp":
        return _meeting(url.netloc, size, rank)
    address = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
    return _meeting(address, _given(size, os.environ.get("WORLD_SIZE")), _given(rank, os.environ.get("RANK")))


def _given(argument: Any, other: str | None) -> Any:
    """An argument, unless it is missing or -1."""
    return other if argument is None or int(argument) < 0 else argument


def _meeting(address: str, size: Any, rank: Any) -> bytes:
    number, own = (-1 if value is None else int(value) for value in (size, rank))
    return b',"meets":[%s,%d,%d]' % (quoted(address, 100, last=True), number, own)


# -- DDP --


class _NextPass(threading.local):
    """The group of the DDP whose next backward pass in this thread sums gradients."""

    group: Any = None


def watch_backward(torch: Any, recorder: Recorder) -> None:
    """Record the passes of every DDP, for a torch whose own recorder supports only NCCL (2.6).

    All ranks do the same number of synchronised passes, so a pass counts as a collective of DDP's group.
    `AttributeError` if this torch has other internals.
    """
    reducer, next_pass = torch._C._distributed_c10d.Reducer, _NextPass()
    prepare, backward = reducer.prepare_for_backward, torch.autograd.backward

    def prepare_for_backward(self: Any, *args: Any) -> Any:
        ddp = sys._getframe(1).f_locals.get("self")  # DDP calls it itself, unless under no_sync()
        next_pass.group = getattr(ddp, "process_group", None)
        return prepare(self, *args)

    @functools.wraps(backward)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        group, next_pass.group = next_pass.group, None
        entry, failed = (recorder.begin_pass(group) if group else 0), True
        try:
            result = backward(*args, **kwargs)
            failed = False
            return result
        finally:
            recorder.end_work(entry, failed=failed)

    reducer.prepare_for_backward = prepare_for_backward
    torch.autograd.backward = recorded


SETUP = "setup"
"""The name that stands for the group in which groups themselves are made."""

_HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
# The functions of torch.distributed, each with the argument that has the tensors to send.
_COLLECTIVES = {
    "all_reduce": "tensor",
    "broadcast": "tensor",
    "reduce": "tensor",
    "all_gather": "tensor",
    "all_gather_into_tensor": "input_tensor",
    "all_gather_single": "input_tensor",  # the names that FSDP calls in torch 2.13
    "gather": "tensor",
    "scatter": "tensor",
    "reduce_scatter": "input_list",
    "reduce_scatter_tensor": "input",
    "reduce_scatter_single": "input",
    "all_to_all": "input_tensor_list",
    "all_to_all_single": "input",
    "all_reduce_coalesced": "tensors",
    "all_gather_coalesced": "input_tensor_list",
    "barrier": "",
    "monitored_barrier": "",
}
_ROOTS = {"broadcast": "src", "scatter": "src", "reduce": "dst", "gather": "dst"}
_MESSAGES = {"send": "dst", "isend": "dst", "recv": "src", "irecv": "src"}
MOST_WORKS = 4096  # with more, those that no longer exist are dropped
_SETUP = ("init_process_group", "new_group")


class _Inside(threading.local):
    """Whether this thread is in a recorded call."""

    call = False


class Recorder:
    """Wraps the functions of `torch.distributed`; Muster's MPI backend calls it too."""

    def __init__(self) -> None:
        self._folder = self._rank = ""
        self._ring: Ring | None = None
        self._c10d: Any = None
        self._server: Any = None
        self._inside, self._texts = _Inside(), CallTexts()
        self._names: dict[str, str] = {}
        self._has_works = False
        self._works: dict[int, tuple[Callable[[], Any], int]] = {}
        """The works that calls have returned, by their addresses, each with its number in the record."""
        self._watched: set[type] = set()

    def record_as(self, folder: str, rank: str) -> None:
        """Write to the files of this rank in this folder."""
        self._folder, self._rank = folder, rank

    def wrap(self, c10d: ModuleType) -> None:
        """Replace each function of torch.distributed by one that records."""
        self._c10d = c10d
        functions = {
            **dict.fromkeys(_SETUP, self._setup),
            **dict.fromkeys(_COLLECTIVES, self._collective),
            **dict.fromkeys(_MESSAGES, self._message),
        }
        for name, describe in functions.items():
            if original := getattr(c10d, name, None):
                setattr(c10d, name, self._recording(name, original, describe))

    def _recording(
        self, name: str, original: Callable[..., Any], describe: Callable[..., tuple[Group, bytes] | None]
    ) -> Callable[..., Any]:
        inside, positions = self._inside, positions_of(original)

        @functools.wraps(original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if inside.call:  # torch's own functions call each other
                return original(*args, **kwargs)
            ring, entry, state, result = self._ring, 0, FAILED, None
            inside.call = True
            try:
                try:
                    described = describe(name, CallArguments(positions, args, kwargs))
                    ring = self._ring
                    entry = ring.begin(*described) if ring and described else 0
                except Exception:  # noqa: BLE001, S110  # contextlib.suppress takes 0.3 µs more
                    pass
                result = original(*args, **kwargs)
                state = DONE if result is None or not hasattr(result, "wait") else BEGUN
                return result
            finally:
                inside.call = False
                if ring and entry:
                    ring.end(entry, state)
                    if state is BEGUN:
                        self._watch(result, entry)

        return _marked(recorded)

    # -- waits for a call that had returned --

    def _watch(self, work: Any, entry: int) -> None:
        """Record when the program waits for this work: until then, the rank may be elsewhere."""
        try:
            if type(work) not in self._watched:
                owner = next(kind for kind in type(work).__mro__ if "wait" in vars(kind))
                if owner not in self._watched:
                    owner.wait = self._waiting(owner.wait)  # type: ignore[attr-defined]
                self._watched |= {owner, type(work)}
            if len(self._works) >= MOST_WORKS:
                self._works = {at: each for at, each in self._works.items() if each[0]() is not None}
            self._works[id(work)] = weakref.ref(work), entry  # a weak dictionary would take 1 µs more
        except Exception:  # noqa: BLE001, S110  # such as a work of a kind without weak references
            pass

    def _waiting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        inside = self._inside

        @functools.wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            entry = 0 if inside.call else self._entry_of(work)
            ring, state = self._ring, FAILED
            if not ring or not entry:
                return original(work, *args, **kwargs)
            ring.wait(entry, WAITED)
            try:
                result = original(work, *args, **kwargs)
                state = DONE if _is_complete(work) else BEGUN  # NCCL only makes its stream wait
                return result
            finally:
                ring.wait(entry, state)

        return _marked(wait)

    def _entry_of(self, work: Any) -> int:
        found = self._works.get(id(work))
        return found[1] if found and found[0]() is work else 0

    # -- the description of each function, as a part of a slot --

    def _setup(self, name: str, call: CallArguments) -> tuple[Group, bytes] | None:
        if self._ring is None:
            self._open()
        if self._ring is None or call("use_local_synchronization"):
            return None
        meets = meeting(call) if name == "init_process_group" else b""
        return self._ring.group("call", SETUP, ()), self._text(name, (), meets)

    def _collective(self, name: str, call: CallArguments) -> tuple[Group, bytes] | None:
        group, side = self._group(call("group")), _ROOTS.get(name)
        # Where a program names no root, torch takes rank 0.
        root = (self._rank_argument(side, call) or 0) if side else None
        extra = b"" if root is None else b',"root":%d' % root
        if group is None:
            return None
        return group, self._text(name, call(_COLLECTIVES[name]), extra)

    def _message(self, name: str, call: CallArguments) -> tuple[Group, bytes] | None:
        group, peer = self._group(call("group"), "message"), self._rank_argument(_MESSAGES[name], call)
        extra = b',"peer":%d,"tag":%d' % (-1 if peer is None else peer, call("tag") or 0)
        if group is None:
            return None
        return group, self._text(name, call("tensor"), extra)

    def _rank_argument(self, side: str, call: CallArguments) -> int | None:
        """The rank in the argument `src` or `dst`, or by its group number, `group_src` or `group_dst`."""
        rank, inner = call(side), call("group_" + side)
        if rank is not None or inner is None:
            return None if rank is None else int(rank)
        world = self._c10d._world
        ranks = world.pg_group_ranks[call("group") or world.default_pg]
        return next((rank for rank, number in ranks.items() if number == inner), None)

    def _group(self, group: Any, kind: str = "call") -> Group | None:
        if self._ring is None:
            return None
        world = self._c10d._world
        group = group or world.default_pg
        name = world.pg_names.get(group)
        if name is None:
            return None
        recorded = self._ring.groups.get((kind, name))
        return recorded or self._ring.group(kind, name, sorted(world.pg_group_ranks[group]))

    # -- for Muster's MPI backend --

    def begin_pass(self, group: Any) -> int:
        """A backward pass of DDP that sums gradients; returns its number for `end_work`. Raises nothing."""
        with contextlib.suppress(Exception):
            if self._ring and not self._has_works and (counted := self._group(group)):
                return self._ring.begin(counted, self._text("all_reduce", ()))
        return 0

    def begin_work(self, group: Any, op: str, tensors: Any) -> int:
        """A collective that a Python backend has begun; returns its number for `end_work`. Raises nothing."""
        self._has_works = True
        with contextlib.suppress(Exception):
            counted = self._group(group, "work")
            if counted and self._ring:
                return self._ring.begin(counted, self._text(op, tensors))
        return 0

    def end_work(self, entry: int, *, failed: bool = False) -> None:
        """It is complete, or has failed."""
        if self._ring and entry:
            self._ring.end(entry, FAILED if failed else DONE)

    # -- the file and torch's server --

    def _open(self) -> None:
        """Begin the record, when the program is about to bring its ranks together."""
        self._ring = Ring(os.path.join(self._folder, f"ring-{self._rank}"))
        torch = sys.modules["torch"]
        self._ring.head({"pid": os.getpid()})
        os.register_at_fork(after_in_child=self._forget)
        with contextlib.suppress(AttributeError):
            if not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"):  # its recorder supports only NCCL
                watch_backward(torch, self)
        with contextlib.suppress(Exception), _Quiet():  # this torch has no such server
            start = torch._C._distributed_c10d._WorkerServer
            self._server = start(os.path.join(self._folder, f"torch-{self._rank}"), -1)
            atexit.register(self._close)

    def _close(self) -> None:
        server, self._server = self._server, None
        if server:
            with contextlib.suppress(Exception), _Quiet():
                server.shutdown()

    def _forget(self) -> None:
        """In a forked child: the record is the parent's, and so are the threads of its server."""
        self._ring = None
        _kept.append(self._server)  # its destructor would join threads that the fork did not copy
        self._server = None

    def _text(self, op: str, tensors: Any, extra: bytes = b"") -> bytes:
        """The description of a call of the first frame that is not torch's or this file's."""
        frame: FrameType | None = sys._getframe(2)  # the caller of begin_work, or a recorded function
        for _ in range(60):
            if frame is None:
                break
            path = frame.f_code.co_filename
            name = self._names.get(path)
            if name is None:
                name = self._names[path] = _short(path)
            if name:
                return self._texts.text(op, name, frame, tensors, extra)
            frame = frame.f_back
        return self._texts.text(op, "", None, tensors, extra)


def _short(path: str) -> str:
    """The short name of a file; empty for a file of torch, of Muster's backend, or this one."""
    if path.startswith((_HERE, "<")) or "/torch/" in path or "/mpi_backend/" in path:
        return ""
    inside = os.path.relpath(path) if os.path.isabs(path) else path
    return os.path.basename(path) if inside.startswith("..") else inside


def _marked(function: Any) -> Callable[..., Any]:
    """The function, with a file name that shows in a traceback of the program whose line it is."""
    function.__code__ = function.__code__.replace(co_filename=RECORDER)
    marked: Callable[..., Any] = function
    return marked


def _is_complete(work: Any) -> bool:
    try:
        return bool(work.is_completed())
    except Exception:  # noqa: BLE001
        return True


_kept: list[Any] = []


class _Quiet:
    """Lets torch's C++ print only errors: its server would print a line at its start."""

    def __enter__(self) -> None:
        library = os.path.join(os.path.dirname(sys.modules["torch"].__file__ or ""), "lib", "libc10.so")
        self._level = ctypes.c_int.in_dll(ctypes.CDLL(library), "FLAGS_caffe2_log_level")
        self._before, self._level.value = self._level.value, max(2, self._level.value)

    def __exit__(self, *error: object) -> None:
        self._level.value = self._before


def begin() -> None:
    """Record as the rank that the environment names now."""
    # torch reads it when it makes its own record; 2.13 also records Gloo.
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    recorder.record_as(os.environ["MUSTER_AGENT"], os.environ["RANK"])


if __name__ == "muster_recorder":
    recorder = Recorder()
    begin()
