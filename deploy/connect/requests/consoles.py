"""Requests to running ranks: an expression in every rank, a console of one rank, connections passed on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from ...decode import AtMost, Like, message
from ...hosts.bounds import Name, Path, Text
from .request import Nothing, Request

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


@message(frozen=True)
class StreamOpened:
    """Whether the job, and the rank of a debugger, is on this host; `refused`: why there is no connection.

    `recorded`: whether its ranks have consoles. `missing`: the rank has no debugpy. `code`: its files.
    """

    recorded: bool
    here: bool
    code: Path
    refused: Text = ""
    missing: bool = False


STREAM_OPEN = Request("stream_open", StreamOpened)
STREAM_PART = Request("stream_part", Nothing)
STREAM_TAKEN = Request("stream_taken", Nothing)
STREAM_CLOSE = Request("stream_close", Nothing)
DEBUGGER = Request("debugger", Nothing)
