"""Requests to running ranks: evaluate an expression in every rank, and a console of one rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from ...decode import AtMost, Like, message
from ...hosts.bounds import Name, Text
from .request import Request

_Text = Annotated[str, AtMost(1 << 17)]


@message(frozen=True)
class Answer:
    """A rank's answer: the value as text, or an error. `at`: the line of its program."""

    at: Annotated[str, AtMost(1 << 9)] = ""
    value: Text | None = None
    error: Text = ""


@message(frozen=True)
class Answers:
    """The answer of each rank of a host. `recorded`: whether its ranks have consoles."""

    recorded: bool
    ranks: Annotated[Mapping[Annotated[str, Like(r"\d{1,7}")], Answer], AtMost(1 << 12)]


@message(frozen=True)
class Opened:
    """Whether a rank is on this host, and its console is open."""

    recorded: bool
    here: bool


@message(frozen=True)
class ConsoleText:
    """Output of a console; `ask`: the prompt, if it waits for a line. `over`: the console is closed."""

    text: _Text
    ask: Name | None = None
    over: bool = False


EVAL = Request("console_eval", Answers, ranks=lambda answer: answer.ranks)
OPEN = Request("console_open", Opened)
SAY = Request("console_say", ConsoleText)
