"""A job that grows: its ranks get SIGUSR1 once all of their programs handle it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, cast

import pytest

from muster.deploy.connect.channel import Channel
from muster.deploy.connect.requests.launch import HANDLED, Handled
from muster.deploy.connect.requests.request import Request
from muster.deploy.errors import MusterError
from muster.deploy.jobs import background as module
from muster.deploy.jobs.background import Growth


class Host:
    """A host that gives these answers, one for each question."""

    def __init__(self, *answers: bool | MusterError) -> None:
        self.answers, self.sent = [*answers], list[str]()

    def post(self, request: Request[Any], **words: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if request is not HANDLED:
            self.sent.append(f"{request.name} {words['name']}")
            return future
        answer = self.answers.pop(0)
        if isinstance(answer, MusterError):
            future.set_exception(answer)
        else:
            future.set_result(Handled(answer))
        return future


def looks(*hosts: Host, turns: int) -> list[bool]:
    """What each turn returns."""
    growth = Growth({f"node{number}": cast(Channel, host) for number, host in enumerate(hosts)})
    return [growth.look() for _ in range(turns)]


@pytest.fixture(autouse=True)
def at_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_SECONDS", 0.0)


def test_the_signal_is_sent_once_when_every_program_handles_it() -> None:
    hosts = Host(False, True), Host(True, True)
    assert looks(*hosts, turns=6) == [False, False, False, True, False, False]
    assert [host.sent for host in hosts] == [["signal SIGUSR1"], ["signal SIGUSR1"]]


@pytest.mark.parametrize("answer", [False, MusterError("of another version")])
def test_a_program_that_does_not_handle_it_never_gets_it(answer: bool | MusterError) -> None:
    hosts = Host(True, True), Host(answer, answer)
    assert not any(looks(*hosts, turns=4))
    assert [host.sent for host in hosts] == [[], []]
