"""Whether a host reaches the servers of its packages, with servers of the test."""

from __future__ import annotations

import http.client
import threading
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest

from muster.deploy.features.packages.on_host import environments as reach
from muster.deploy.features.packages.on_host.environments import refusal

URLS = [f"https://server{number}/x" for number in range(4)]


def test_servers_that_keep_silent_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver waits 15 s for the answer: four waits one after the other would be too long."""
    end, asked = threading.Event(), []
    clock = SimpleNamespace(now=100.0)

    def silent(request: urllib.request.Request, timeout: float) -> Any:
        asked.append(request.full_url)
        end.wait(60)
        raise OSError("too late")

    class Thread(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            assert timeout is not None
            clock.now += timeout

    monkeypatch.setattr(urllib.request, "urlopen", silent)
    monkeypatch.setattr(reach, "threading", SimpleNamespace(Thread=Thread))
    monkeypatch.setattr(reach, "time", SimpleNamespace(monotonic=lambda: clock.now))
    try:
        assert refusal(URLS) == f"{URLS[0]}: no answer within 5 s"
        assert clock.now == 100.0 + reach.SECONDS
    finally:
        end.set()


def test_an_answer_that_is_no_http_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def nonsense(request: urllib.request.Request, timeout: float) -> Any:
        raise http.client.BadStatusLine("SSH-2.0-OpenSSH_9.6")

    monkeypatch.setattr(urllib.request, "urlopen", nonsense)
    assert refusal(URLS[:1]) == f"{URLS[0]}: SSH-2.0-OpenSSH_9.6"


def test_a_host_that_reaches_all_servers_has_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer:
        def __enter__(self) -> None: ...
        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(urllib.request, "urlopen", lambda request, timeout: Answer())
    assert refusal(URLS) == ""
