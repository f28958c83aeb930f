"""A request to an agent, and the type of its answer.

`channel.ask(FACTS)` returns a `Facts`. `Channel` checks an answer when it arrives; a mismatch ends the
connection to its host.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from ...decode import MALFORMED, AtMost, from_json, lazy_dataclass
from ...hosts.bounds import Pid
from ...wire.frames import Frame

Answer = TypeVar("Answer")
MOST_ENTRIES = 1 << 18  # files of a folder or a run, contents of a tree
Pids = Annotated[tuple[Pid, ...], AtMost(1 << 16)]


@lazy_dataclass(frozen=True)
class Nothing:
    """The request is done, and has no other answer."""


@lazy_dataclass(frozen=True)
class Payload:
    """Bytes of a file; none at its end."""

    payload: bytes = b""


@dataclass(frozen=True)
class Request(Generic[Answer]):
    """The name of a request, and the type of its answer. `room`: the most bytes that may follow the answer.

    `stuck_after`: seconds after which an agent that reports to be busy, but uses no processor time, is given
    up, for a request that may take long.
    `ranks`: the ranks that an answer is about, if any; only ranks of its own host are allowed.
    """

    name: str
    answer: type[Answer]
    room: int = 0
    stuck_after: float | None = None
    ranks: Callable[[Answer], Iterable[str]] | None = None

    def read(self, frame: Frame, payload: bytes = b"") -> Answer:
        """The answer in a frame; ValueError if it is no answer to this request."""
        try:
            value: Any = {**frame, "payload": payload} if self.room else frame
            answer: Answer = from_json(self.answer, value)
        except MALFORMED as error:
            raise ValueError(f"its answer to {self.name}: {error}") from None
        return answer

    def require_own(self, answer: Answer, own: Container[int]) -> None:
        """ValueError for an answer about a rank of another host."""
        foreign = [rank for rank in map(int, self.ranks(answer)) if rank not in own] if self.ranks else []
        if foreign:
            text = f"rank {min(foreign)}, which the plan does not have there"
            raise ValueError(f"its answer to {self.name}: {text}")
