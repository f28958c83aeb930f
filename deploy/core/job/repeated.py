"""Recognises a failure that repeats itself: in the program, or on one host. Pure.

A failure before the first step recurs at every start: a module that is missing, an argument that is wrong. A
failure after the first step may recur too, but the attempt made progress, unless it comes at the same step. A
rank whose peer is gone, or that a user killed, is no evidence about the program.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from ..text.printed import figures_of
from .cause import misses_a_peer
from .result import LaunchResult, RankExit

CRASHES = frozenset(
    {
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGILL,
        signal.SIGFPE,
        signal.SIGTRAP,
        signal.SIGSYS,
    }
)
"""Signals by which a program ends itself."""
SIGNALLED = 128
PREEMPTED = 75
"""The exit status of a training that was asked to end, and saved (docs/reference/exit-statuses.md)."""
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?=:|$)")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True)
class EarlyFailure:
    """A failure before the first step, by what repeats itself.

    `mark`: the exception with its file and line; without a traceback, the exit status and the last line.
    `hosts`: those on which ranks failed on their own.
    """

    mark: tuple[str, ...]
    hosts: frozenset[str]


def early_failure(result: LaunchResult) -> EarlyFailure | None:
    """The failure of an attempt that made no step; None for any other end."""
    failure = result.failure
    if failure is None or result.stepped:
        return None
    if failure.kind == "launcher":
        if failure.exit_status > SIGNALLED:
            return None  # it was killed
        elsewhere = {failure.host} - {None, result.plan.hosts[0].host.name}
        return EarlyFailure((failure.reason, *_last_line(failure.tail)), frozenset(map(str, elsewhere)))
    end = None if failure.rank is None else result.ends.get(failure.rank)
    if failure.kind != "rank" or misses_a_peer(failure.tail) or (end and not _is_own(end)):
        return None
    others = {other.placed.host for other in result.ends.values() if _is_own(other)}
    mark = _exception(failure.tail) or (failure.reason, *_last_line(failure.tail))
    return EarlyFailure(mark, frozenset({str(failure.host), *others}))


def failed_step(result: LaunchResult) -> tuple[int, tuple[str, ...]] | None:
    """The step that rank 0 printed last, and the exception that ended a rank after it; None if unknown."""
    failure, step = result.failure, figures_of(result.last_line).step
    if failure is None or failure.kind != "rank" or step is None or misses_a_peer(failure.tail):
        return None
    mark = _exception(failure.tail)
    return (step, mark) if result.stepped and mark else None


def first_alike(result: LaunchResult, earlier: Sequence[LaunchResult]) -> LaunchResult | None:
    """The first of the earlier attempts whose failure this result repeats."""
    last = early_failure(result)
    if last is None:
        return None
    same = (each for each in earlier if (early := early_failure(each)) and early.mark == last.mark)
    return next(same, None)


def failed_host(result: LaunchResult) -> str | None:
    """The only host on which ranks failed; None if ranks failed on several hosts, or none did.

    A rank that a signal from outside ended counts too: a program of that host may end processes.
    """
    failure = result.failure
    if failure is None or failure.exit_status == PREEMPTED or failure.host is None:
        return None
    if failure.kind == "launcher":
        return failure.host if failure.host != result.plan.hosts[0].host.name else None
    if failure.kind not in {"rank", "stall"} or failure.rank is None or misses_a_peer(failure.tail):
        return None
    others = {end.placed.host for end in result.ends.values() if _is_own(end)}
    return failure.host if others <= {failure.host} else None


def _is_own(end: RankExit) -> bool:
    """Whether a rank failed on its own: not by a signal from outside, nor for a peer that is gone."""
    if end.terminated:
        return False
    if end.code < 0 and not end.why:  # `why`: the kernel killed it for lack of memory
        return -end.code in CRASHES
    return end.code != 0 and not misses_a_peer(end.tail)


def _exception(tail: Sequence[str]) -> tuple[str, ...]:
    """The exception and the line of the last traceback, as `("ImportError", "train.py", "2")`."""
    frames = [(number, found) for number, line in enumerate(tail) if (found := _FRAME.search(line))]
    if not frames:
        return ()
    number, frame = frames[-1]
    after = (found for line in tail[number + 1 :] if (found := _EXCEPTION.match(line)))
    kind = next((found.group() for found in after), "")
    return kind, frame.group(1).rpartition("/")[2], frame.group(2)


def _last_line(tail: Sequence[str]) -> tuple[str, ...]:
    """The last line, without its numbers: ports and process numbers differ each time."""
    lines = [line.strip() for line in tail if line.strip()]
    return (_NUMBERS.sub("#", lines[-1]),) if lines else ()
