"""The protocol between driver and agent: both sides keep to its table. A part is loaded when it is asked."""

from __future__ import annotations

import importlib
from io import BytesIO
from pathlib import Path

import pytest

from muster.deploy.core.agent.main import Agent, Parts
from muster.deploy.core.connect.channel import Channel
from muster.deploy.core.connect.inbox import Inbox
from muster.deploy.core.connect.requests.hosts import LOAD, TIME
from muster.deploy.core.connect.requests.launch import MISSING
from muster.deploy.core.connect.requests.request import Nothing, Request
from muster.deploy.core.connect.transports.process import LocalPipe
from muster.deploy.core.errors import MusterError
from muster.deploy.core.wire.protocol import EARLY, ERRORS, LATE, PARTS, Handler
from tests.subjects import request_modules


@pytest.mark.parametrize("part", (*EARLY, *LATE), ids=lambda part: part.kind)
def test_a_part_answers_what_the_table_says_and_nothing_else(part: Handler, tmp_path: Path) -> None:
    kind = getattr(importlib.import_module(f"muster.deploy.{part.module}"), part.kind)
    assert sorted(f"do_{name}" for name in part.names) == [
        name for name in dir(kind) if name.startswith("do_")
    ]
    parts = Parts(str(tmp_path), Agent(BytesIO(), BytesIO()))
    assert all(isinstance(parts.of(name), kind) for name in part.names)


def test_the_driver_has_one_request_for_each_name_of_the_table() -> None:
    values = [value for name in request_modules() for value in vars(importlib.import_module(name)).values()]
    names = sorted(value.name for value in {value for value in values if isinstance(value, Request)})
    assert names == sorted(name for part in (*EARLY, *LATE) for name in part.names)
    assert names == sorted(PARTS) == sorted(ERRORS)


def test_parts_loaded_ahead_answer_as_before_and_an_unknown_part_is_an_error() -> None:
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
