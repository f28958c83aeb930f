"""The module that ranks import, for a launch whose ranks print nothing yet.

py-spy reads it from outside. A thread in the rank could not say it: while Python loads a library, which takes
long from a slow disk, no other thread of Python runs.
"""

from __future__ import annotations

import time
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import Future
from pathlib import PurePath

from ..connect.channel import Channel
from ..connect.fanout import in_thread
from ..connect.requests.launch import Stack, StackFrame
from ..why.gather import own_py_spy
from .diagnosis import ask_stacks

EVERY_SECONDS = 10.0
"""py-spy takes some 0.3 s of a processor for each rank."""
IMPORT, MODULE = "_find_and_load", "<module>"


class Imports:
    """Asks the first host now and then, in a thread. `own`: the files of the project."""

    def __init__(self, job: str, channel: Channel, own: Container[str]) -> None:
        self._job, self._channel, self._own = job, channel, own
        self._asked = 0.0
        self._answer: Future[Mapping[str, Stack]] | None = None
        self._text = ""

    def __call__(self) -> str:
        """`importing torch`, by the last answer; empty if no rank of the host imports anything."""
        if self._answer and self._answer.done():
            self._text = "" if self._answer.exception() else importing(self._answer.result(), self._own)
            self._answer = None
        elif not self._answer and time.monotonic() - self._asked >= EVERY_SECONDS:
            self._asked = time.monotonic()
            self._answer = in_thread(lambda: ask_stacks(self._job, self._channel, own_py_spy()))
        return self._text


def importing(stacks: Mapping[str, Stack], own: Container[str]) -> str:
    """`importing torch`, or `rank 1 imports torch` if other ranks do not."""
    modules = {int(rank): module_of(stack.frames, own) for rank, stack in stacks.items()}
    named = {rank: module for rank, module in sorted(modules.items()) if module}
    if not named:
        return ""
    rank, module = next(iter(named.items()))
    return f"importing {module}" if {*modules.values()} == {module} else f"rank {rank} imports {module}"


def module_of(frames: Sequence[StackFrame], own: Container[str]) -> str:
    """The package that the program imports; empty if it imports none. `frames`: innermost first.

    A module of the project that imports the package is not named.
    """
    found = running = ""
    for frame in frames:
        if frame.file in own:
            break
        if frame.function == MODULE:
            running = PurePath(frame.file).with_suffix("").parts[0]
        elif frame.function == IMPORT:
            found = running
    return found
