"""Where ranks meet: ports that two launches never share, and addresses that were really reached."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import threading
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest

from muster.deploy.core.agent import rendezvous_port as rendezvous
from muster.deploy.core.agent.rendezvous_port import ReservedPort, reach_hosts
from muster.deploy.features.packages.on_host import environments as reach
from muster.deploy.features.packages.on_host.environments import refusal
from tests.waiting import wait_until

ENOUGH = 30.0  # seconds, for a busy machine; who answers is not waited for any longer


def reached(addresses: list[str], port: int, nonce: str) -> dict[str, str]:
    target = {"host": "head", "addresses": addresses, "port": port, "nonce": nonce}
    interfaces: dict[str, str] = reach_hosts([target], ENOUGH)["head"]["interfaces"]
    return interfaces


def test_a_meeting_is_reached_by_its_nonce() -> None:
    own = ReservedPort("secret")
    assert reached(["127.0.0.1"], own.port, "secret") == {"127.0.0.1": "lo"}
    assert reached(["127.0.0.1"], own.port, "others") == {}
    own.close()


def test_callers_that_take_their_time_keep_nobody_waiting() -> None:
    own = ReservedPort("secret")
    slow = [socket.create_connection(("127.0.0.1", own.port)) for _ in range(rendezvous.MOST_ANSWERED + 10)]
    assert reached(["127.0.0.1"], own.port, "secret") == {"127.0.0.1": "lo"}
    for caller in slow:
        caller.close()
    own.close()


def test_every_address_that_leads_there_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "OTHERS_SECONDS", ENOUGH)
    own = ReservedPort("secret")
    found = reached(["127.0.0.1", "127.0.0.2"], own.port, "secret")
    assert found == {"127.0.0.1": "lo", "127.0.0.2": "lo"}
    own.close()


def test_an_address_that_leads_elsewhere_does_not_count() -> None:
    own = ReservedPort("secret")
    assert reached(["127.0.0.1", "203.0.113.1"], own.port, "secret") == {"127.0.0.1": "lo"}
    own.close()


def next_draws(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next rendezvous tries this port first."""
    first = (port - rendezvous.PORTS.start).to_bytes(4, "big")
    monkeypatch.setattr(os, "urandom", lambda size: first)


@pytest.mark.parametrize("address", ["", "127.0.0.1"])
def test_the_port_is_free_and_reserved(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    own = ReservedPort("secret")
    caller = socket.create_connection(("127.0.0.1", own.port))  # does not close, so the port lingers
    assert caller.recv(6) == b"secret"
    own.stop_listening()
    next_draws(own.port, monkeypatch)
    another = ReservedPort("another")
    assert another.port != own.port
    socket.create_server((address, own.port)).close()  # as rank 0: with SO_REUSEADDR
    for opened in (caller, own, another):
        opened.close()


@pytest.mark.parametrize("address", ["", "127.0.0.1"])
def test_between_release_and_rank_0_the_port_is_held(address: str) -> None:
    own = ReservedPort("secret")
    own.stop_listening()
    with socket.socket() as thief, pytest.raises(OSError, match="Address already in use"):
        thief.bind((address, own.port))
    own.close()


def test_local_sockets_of_other_users_take_no_port_away(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = range(rendezvous.PORTS[-50], rendezvous.PORTS[-1])  # other programs of this machine may have some
    monkeypatch.setattr(rendezvous, "PORTS", ports)
    with contextlib.ExitStack() as theirs:
        for port in ports:
            theirs.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0muster-port-{port}")
        own = ReservedPort("secret")
        assert own.port in ports
        own.close()


def test_every_port_has_its_turn() -> None:
    ports = len(rendezvous.PORTS)
    assert len({number * rendezvous.STRIDE % ports for number in range(ports)}) == ports


def test_no_port_left_is_an_error_that_says_which_were_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as taken:
        monkeypatch.setattr(rendezvous, "PORTS", range(taken.getsockname()[1], taken.getsockname()[1] + 1))
        with pytest.raises(OSError, match="no free port between"):
            ReservedPort("secret")


def test_every_host_is_reached_or_it_is_said_why_not() -> None:
    own, other = ReservedPort("secret"), ReservedPort("another")
    closed = socket.socket()  # bound, so that no other process can listen there
    closed.bind(("127.0.0.1", 0))
    targets = [
        {"host": "good", "addresses": ["127.0.0.1", "127.0.0.2"], "port": own.port, "nonce": "secret"},
        {"host": "else", "addresses": ["127.0.0.1"], "port": other.port, "nonce": "secrets"},
        {"host": "closed", "addresses": ["127.0.0.1"], "port": closed.getsockname()[1], "nonce": "secret"},
    ]
    assert reach_hosts(targets, ENOUGH) == {
        "good": {"interfaces": {"127.0.0.1": "lo", "127.0.0.2": "lo"}, "refused": {}},
        "else": {"interfaces": {}, "refused": {"127.0.0.1": "another machine answers there"}},
        "closed": {"interfaces": {}, "refused": {"127.0.0.1": "Connection refused"}},
    }
    closed.close()
    own.close()
    other.close()


def test_a_host_that_opens_the_next_port_gives_the_last_one_back() -> None:
    part = rendezvous.RendezvousPort()
    first, _ = [part.do_open_port({"nonce": "n", "probe": False}, b"")["port"] for _ in range(2)]

    def is_free() -> bool:
        try:
            rendezvous._bind_alone(first).close()
        except OSError:
            return False
        return True

    wait_until(is_free, "the end of the first port")


# -- whether a host reaches the servers of its packages, with servers of the test --


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
    def malformed(request: urllib.request.Request, timeout: float) -> Any:
        raise http.client.BadStatusLine("SSH-2.0-OpenSSH_9.6")

    monkeypatch.setattr(urllib.request, "urlopen", malformed)
    assert refusal(URLS[:1]) == f"{URLS[0]}: SSH-2.0-OpenSSH_9.6"


def test_a_host_that_reaches_all_servers_has_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer:
        def __enter__(self) -> None: ...
        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(urllib.request, "urlopen", lambda request, timeout: Answer())
    assert refusal(URLS) == ""
