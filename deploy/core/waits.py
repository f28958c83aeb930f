"""The waits of this command, for hosts and for other things. A line shows them (cli/command.py)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator

from .text.columns import cut
from .text.fold import fold_names
from .text.progress import ELAPSED_SECONDS
from .text.text import duration

LONGEST_NAMES = 60  # columns
QUICK_SECONDS = 1.0
"""From this time on, a command without a noted wait has a line."""


class Wait:
    """Hosts, or another thing, that are waited for. Another thread may read it."""

    def __init__(self, what: str = "", hosts: Iterable[str] = ()) -> None:
        self._what, self._began = what, time.monotonic()
        self._left = dict.fromkeys(hosts)
        self._hosts = len(self._left)

    def also_for(self, host: str) -> None:
        self._left[host] = None
        self._hosts += 1

    def name(self, what: str) -> None:
        """Change what is waited for."""
        self._what = what

    def over_for(self, host: str) -> None:
        self._left.pop(host, None)

    @property
    def has_hosts(self) -> bool:
        return bool(self._left)

    def __str__(self) -> str:
        """`waiting for 2 of 3 hosts: node[2-3] (8 s)`, or for something else; empty if it is over."""
        left = [*self._left]
        names = cut(fold_names(left) if left else self._what, LONGEST_NAMES)
        total = f"{len(left)} of {self._hosts} hosts: " if left and self._hosts > 1 else ""
        return timed(f"waiting for {total}{names}", self._began) if names else ""


_open: list[Wait] = []


@contextlib.contextmanager
def waiting(what: str = "", hosts: Iterable[str] = ()) -> Iterator[Wait]:
    """Note a wait for these hosts, or for something else, such as `the container engine`."""
    wait = Wait(what, hosts)
    _open.append(wait)
    try:
        yield wait
    finally:
        _open.remove(wait)


def for_hosts() -> str:
    """The outermost wait for hosts; empty if there is none."""
    return next((text for wait in [*_open] if wait.has_hosts and (text := str(wait))), "")


def line(began: float) -> str:
    """The line of a command that began then: the outermost wait for hosts, else the innermost other wait."""
    if text := for_hosts() or next((text for wait in [*reversed(_open)] if (text := str(wait))), ""):
        return text
    return timed("working", began) if time.monotonic() - began >= QUICK_SECONDS else ""


def with_hosts(what: str) -> Callable[[], str]:
    """`connecting, waiting for 2 of 3 hosts: node[2-3] (8 s)`: a stage that hosts may delay.

    Without such hosts, `preparing the packages (8 s)`: the package index may be slow.
    """
    began = time.monotonic()
    return lambda: f"{what}, {hosts}" if (hosts := for_hosts()) else timed(what, began)


def timed(text: str, began: float) -> str:
    """The text, with the seconds since it began if these are not few."""
    seconds = time.monotonic() - began
    return f"{text} ({duration(int(seconds))})" if seconds >= ELAPSED_SECONDS else text
