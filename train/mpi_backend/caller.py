"""Tells whether the caller of a collective blocks until it is complete, and may run it in its own thread."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch.distributed.distributed_c10d as c10d

_C10D = vars(c10d)


def blocks(opts: Any) -> bool:
    """Return `not opts.asyncOp`; in torch 2.6, whose options lack it, look at the calling frame's `async_op`.

    torch 2.6 gives a backend no other way to know: there the calling frame is the function of
    torch.distributed that the program called. A call from C++, such as DDP's, has no such frame, and does not
    block.
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
