"""Who calls a method of the process group: a caller that blocks, or torch.compile, which must not trace it.

Where a compiled program calls a collective through torch's C++, as DDP does, Dynamo would trace the methods
of a process group in Python, and fail in mpi4py. torch._dynamo.disable stops that, but it imports Dynamo,
which takes a second, and adds microseconds to each call: so it is only used while Dynamo traces.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

import torch.distributed.distributed_c10d as c10d
from torch._C._dynamo import eval_frame

_C10D = vars(c10d)


def blocks(opts: Any) -> bool:
    """Return `not opts.asyncOp`; in torch 2.6, whose options lack it, look at the calling frame's `async_op`.

    That frame is the function of torch.distributed that the program called. A call from C++, such as DDP's,
    has none, and does not block.
    """
    asynchronous: bool | None = getattr(opts, "asyncOp", None)
    if asynchronous is not None:
        return not asynchronous
    frame: FrameType | None = sys._getframe(1)
    for _ in range(6):  # the methods of the group, and their wrappers
        if frame is None:
            break
        if frame.f_globals is _C10D:
            return frame.f_locals.get("async_op") is False
        frame = frame.f_back
    return False


_tracer = eval_frame.get_eval_frame_callback
_c: Any = eval_frame

T = TypeVar("T", bound=type[Any])


def uncompiled(group: T) -> T:
    """Return the class `group`, whose public methods Dynamo does not trace any more."""
    for name, method in list(vars(group).items()):
        if inspect.isfunction(method) and not name.startswith("__"):
            setattr(group, name, _untraced(method))
    return group


def _untraced(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _tracer() is None:
            return method(*args, **kwargs)
        return _without_dynamo(method)(*args, **kwargs)

    _skip(call)
    return call


def _skip(call: Any) -> None:
    """Have Dynamo not trace `call` itself, as torch._dynamo.skip does: it would warn of what is in it."""
    code = call.__code__
    with suppress(AttributeError):  # private names, which may change; without them there is the warning
        if hasattr(_c, "skip_code"):  # torch 2.6
            _c.skip_code(code)
        else:
            action = _c._FrameAction
            _c.set_code_exec_strategy(code, _c._FrameExecStrategy(action.SKIP, action.DEFAULT))


@functools.cache
def _without_dynamo(method: Callable[..., Any]) -> Callable[..., Any]:
    import torch._dynamo  # noqa: PLC0415 - it has been imported, or nobody would trace

    disabled: Callable[..., Any] = torch._dynamo.disable(method)
    return disabled
