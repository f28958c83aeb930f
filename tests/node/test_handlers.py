"""The protocol between driver and agent: both sides keep to its table. A handler is loaded on demand."""

from __future__ import annotations

import importlib
from io import BytesIO
from pathlib import Path

import pytest

from muster.deploy.core.agent.main import Agent, Handlers
from muster.deploy.core.connect.channel import Channel
from muster.deploy.core.connect.inbox import Inbox
from muster.deploy.core.connect.requests import LOAD, MISSING, TIME, Nothing, Request
from muster.deploy.core.connect.transports.process import LocalPipe
from muster.deploy.core.errors import MusterError
from muster.deploy.core.wire.handler import Handler
from muster.deploy.core.wire.protocol import AT_START, ERRORS, HANDLERS, ON_DEMAND
from tests.subjects import request_modules


@pytest.mark.parametrize("handler", (*AT_START, *ON_DEMAND), ids=lambda handler: handler.kind)
def test_a_handler_answers_what_the_table_says_and_nothing_else(handler: Handler, tmp_path: Path) -> None:
    kind = getattr(importlib.import_module(f"muster.deploy.{handler.module}"), handler.kind)
    assert sorted(f"do_{name}" for name in handler.names) == [
        name for name in dir(kind) if name.startswith("do_")
    ]
    handlers = Handlers(str(tmp_path), Agent(BytesIO(), BytesIO()))
    assert all(isinstance(handlers.of(name), kind) for name in handler.names)


def test_the_driver_has_one_request_for_each_name_of_the_table() -> None:
    values = [value for name in request_modules() for value in vars(importlib.import_module(name)).values()]
    names = sorted(value.name for value in {value for value in values if isinstance(value, Request)})
    assert names == sorted(name for handler in (*AT_START, *ON_DEMAND) for name in handler.names)
    assert names == sorted(HANDLERS) == sorted(ERRORS)


def test_handlers_loaded_ahead_answer_as_before_and_an_unknown_one_is_an_error() -> None:
    channel = Channel("here", LocalPipe(None), Inbox())
    loaded = channel.post(LOAD, words=["reach", "missing", "prepare"])
    assert channel.ask(MISSING, digests=["ab" * 32]).missing == ("ab" * 32,)
    assert loaded.result(60) == Nothing()
    with pytest.raises(MusterError, match="KeyError: 'nothing-like-it'"):
        channel.ask(LOAD, words=["nothing-like-it"])
    channel.close()


def test_an_unknown_request_is_an_error_and_the_agent_lives_on() -> None:
    channel = Channel("here", LocalPipe(None), Inbox())
    with pytest.raises(MusterError, match="KeyError: 'nothing-like-it'"):
        channel.ask(Request("nothing-like-it", Nothing))
    assert channel.ask(TIME).time
    channel.close()
