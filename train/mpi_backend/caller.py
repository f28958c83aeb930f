"""Whether the caller of a collective waits for it at once, and so may just as well run it."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch.distributed.distributed_c10d as c10d

_C10D = vars(c10d)


def waits(opts: Any) -> bool:
    """Return what `opts`, torch's options of a collective, say; in torch 2.6 they do not: then who asks.

    There the function of torch.distributed that a program called is on the stack below, and has the argument
    `async_op`. A call from C++, as DDP's, has no such function below it, and does not wait.
    """
    said: bool | None = getattr(opts, "asyncOp", None)
    if said is not None:
        return not said
    frame: FrameType | None = sys._getframe(1)
    for _ in range(4):
        if frame is None:
            break
        if frame.f_globals is _C10D:
            return frame.f_locals.get("async_op") is False
        frame = frame.f_back
    return False
