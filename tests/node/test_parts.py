"""What the agent is made of: each request has one part that answers it, loaded when it is asked."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from muster.deploy.agent.handlers import PARTS, Part, Parts
from muster.deploy.connect.channel import Channel
from muster.deploy.connect.inbox import Inbox
from muster.deploy.connect.requests.hosts import LOAD, TIME
from muster.deploy.connect.requests.launch import MISSING
from muster.deploy.connect.requests.request import Nothing, Request
from muster.deploy.connect.transports.local import LocalPipe
from muster.deploy.errors import MusterError


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.kind)
def test_a_part_answers_what_the_table_says_and_nothing_else(part: Part, tmp_path: Path) -> None:
    kind = getattr(importlib.import_module(f"muster.deploy.{part.module}"), part.kind)
    assert {f"do_{request}" for request in part.requests} == {
        name for name in dir(kind) if name.startswith("do_")
    }
    assert isinstance(Parts(str(tmp_path), print).of(part.requests[0]), kind)


def test_what_is_loaded_ahead_answers_as_ever_and_what_is_not_there_is_an_error() -> None:
    channel = Channel("here", LocalPipe(None), Inbox())
    loaded = channel.post(LOAD, words=["reach", "missing", "prepare"])
    assert channel.ask(MISSING, digests=["ab" * 32]).missing == ("ab" * 32,)
    assert loaded.result(60) == Nothing()
    with pytest.raises(MusterError, match="KeyError: 'nothing-like-it'"):
        channel.ask(LOAD, words=["nothing-like-it"])
    channel.close()


def test_an_answer_that_nobody_gives_is_an_error_and_not_the_end() -> None:
    channel = Channel("here", LocalPipe(None), Inbox())
    with pytest.raises(MusterError, match="KeyError: 'nothing-like-it'"):
        channel.ask(Request("nothing-like-it", Nothing))
    assert channel.ask(TIME).time
    channel.close()
