"""The driver's standard input on its way to rank 0: part by part to its end, never more than one ahead."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from muster.deploy.cli import options
from muster.deploy.launch.rank_io import PART, StdinFeeder
from tests.unit.plans import make_plan
from tests.unit.test_execute import Hosts, hosts
from tests.waiting import PATIENCE

__all__ = ["hosts"]


class Sent:
    """A channel that keeps what is posted."""

    def __init__(self) -> None:
        self.parts: SimpleQueue[bytes] = SimpleQueue()

    def post(self, request: Any, payload: bytes = b"", **words: Any) -> Future[Any]:
        self.parts.put(payload)
        return Future()

    def next(self) -> bytes:
        return self.parts.get(timeout=PATIENCE)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)


def test_parts_go_one_at_a_time_and_the_end_is_passed_on(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    content = bytes(range(256)) * 200  # 50 KiB: the pipe holds it
    os.write(writer, content)
    given, channel = StdinFeeder(reader), Sent()
    given.begin(0, channel)  # type: ignore[arg-type]
    received = channel.next()
    os.write(writer, b"more")
    with pytest.raises(Empty):
        channel.parts.get(timeout=0.2)  # nothing goes before the first part is taken
    assert given.taken(still_read=True)
    os.close(writer)
    received += channel.next()
    assert given.taken(still_read=True)
    assert (received, channel.next()) == (content + b"more", b"")
    assert len(content) < PART


def test_what_the_rank_does_not_read_is_not_read_here_either(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.write(writer, b"one\n")
    given, channel = StdinFeeder(reader), Sent()
    given.begin(0, channel)  # type: ignore[arg-type]
    assert channel.next() == b"one\n"
    assert given.taken(still_read=False)
    os.write(writer, b"two\n")
    os.close(writer)
    with pytest.raises(Empty):
        channel.parts.get(timeout=0.2)
    assert os.read(reader, 10) == b"two\n"


def test_a_host_that_took_what_it_was_not_sent_is_not_believed(hosts: Hosts) -> None:
    hosts.start_all()
    hosts.tell("node1", "stdin", rank=0, still_read=True)
    result = hosts.run()
    assert result.failure is not None
    assert (result.failure.host, result.failure.kind) == ("node1", "host")
    assert "input that was not sent to it" in result.failure.reason


def test_a_pipe_or_a_file_is_passed_on_and_a_terminal_or_nothing_is_not(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    terminal, other_end = os.openpty()
    nothing = os.open(os.devnull, os.O_RDONLY)
    with Path(__file__).open(encoding="utf-8") as file:
        assert options.feeds(file.fileno())
    assert [options.feeds(one) for one in (reader, terminal, nothing)] == [True, False, False]
    for one in (writer, terminal, other_end, nothing):
        os.close(one)
    assert not options.feeds(nothing)


@pytest.mark.parametrize(("stdin", "said"), [(True, "this command feeds rank 0"), (False, "empty")])
def test_the_plan_says_where_the_input_goes(stdin: bool, said: str) -> None:
    assert f"\nstdin: {said}\n" in str(make_plan("node1 slots=2", stdin=stdin))
