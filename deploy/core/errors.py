"""The errors that Muster explains: one base class, and the exit status of each kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .text.fold import HostMessage, fold_messages


class MusterError(Exception):
    """An error for the reader: what was wrong, where, and what to do. Never shown with a traceback.

    `host`: the host that failed, if one did; `reason` is the text without that name.
    """

    exit_status = 1

    def __init__(self, reason: str = "", *, host: str = "") -> None:
        self.reason, self.host = reason, host
        super().__init__(f"{host}: {reason}" if host else reason)


class UsageError(MusterError):
    """The arguments, the hosts file or the plan are wrong."""

    exit_status = 2


class Problem(NamedTuple):
    """One mistake in a text file. Lines and columns count from 1."""

    source: str
    line: int
    column: int
    text: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}: {self.text}"


class HostfileError(UsageError):
    """Every mistake of a hosts file at once, a line each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class HostError(MusterError):
    """One host cannot take part. `kind` is for programs and stays the same: `ssh.host-key-changed`."""

    exit_status = 3

    def __init__(self, kind: str, text: str, remedy: str = "", *, host: str = "") -> None:
        self.kind, self.text, self.remedy = kind, text, remedy
        super().__init__(f"{text}; {remedy}" if remedy else text, host=host)


class UnfitError(MusterError):
    """Hosts that cannot take part: every host at once, a line for each reason, with what to do.

    `reasons` has an entry for each host.
    """

    exit_status = 3

    def __init__(self, reasons: Iterable[tuple[str, str | MusterError]]) -> None:
        each = [*reasons]
        self.reasons = tuple((host, why if isinstance(why, str) else why.reason) for host, why in each)
        super().__init__("\n".join(lines_of(each)))


def lines_of(reasons: Iterable[tuple[str, str | MusterError]]) -> list[str]:
    """A line for each reason why hosts failed, with the names of these hosts."""
    return [
        str(message) for message in fold_messages(HostMessage(host, *_parts(why)) for host, why in reasons)
    ]


def _parts(why: str | MusterError) -> tuple[str, str]:
    if isinstance(why, HostError):
        return why.text, why.remedy
    return (why, "") if isinstance(why, str) else (why.reason, "")
