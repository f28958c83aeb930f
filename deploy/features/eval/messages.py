"""The request for an expression in every rank of a running job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from ...core.connect.requests.request import Request
from ...core.decode import AtMost, Like, lazy_dataclass
from ...core.hosts.bounds import Text


@lazy_dataclass(frozen=True)
class Answer:
    """A rank's answer: the value as text, or an error. `at`: the line of its program."""

    at: Annotated[str, AtMost(1 << 9)] = ""
    value: Text | None = None
    error: Text = ""


@lazy_dataclass(frozen=True)
class Answers:
    """The answer of each rank of a host. `recorded`: whether its ranks have consoles."""

    recorded: bool
    ranks: Annotated[Mapping[Annotated[str, Like(r"\d{1,7}")], Answer], AtMost(1 << 12)]


EVAL = Request("console_eval", Answers, ranks=lambda answer: answer.ranks)
