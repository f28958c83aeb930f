"""Time servers are asked before the first change, and a cluster that reaches none follows its head."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.ansible.programs import loaded, module
from tests.ansible.rendering import problems_of, render, render_value
from tests.ansible.test_observe import observe
from tests.ansible.test_problems import SEEN

ask = module("time_sync", "ask")
plugin = loaded("time_sync/filter_plugins/muster_clocks.py")

Answer = Callable[[bytes], bytes]


def good(request: bytes, leap: int = 0, mode: int = 4, stratum: int = 2) -> bytes:
    """An answer as a server's: it has the time stamp of the request as its origin."""
    return bytes([leap << 6 | 4 << 3 | mode, stratum]) + bytes(22) + request[40:48] + bytes(16)


@contextmanager
def server(answer: Answer, lost: int = 0) -> Iterator[str]:
    """A time server, as chrony names it; the network loses the first requests."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.bind(("127.0.0.1", 0))

        def serve() -> None:
            for number in range(100):
                request, client = opened.recvfrom(512)
                if not request:
                    return
                if number >= lost:
                    opened.sendto(answer(request), client)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = opened.getsockname()[1]
        yield f"127.0.0.1 iburst port {port}"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", ("127.0.0.1", port))
        thread.join()


def reached(*servers: str, needed: int = 1) -> bool:
    addresses = [address for name in servers for address in ask.addresses(name)]
    return len(ask.answers(addresses)) >= needed


def test_a_server_is_reached_though_a_packet_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "SECONDS", 0.2)
    with server(good) as quick, server(good, lost=2) as slow:
        assert reached(quick)
        assert reached(slow)
        assert reached(quick, slow, needed=2)
        assert not reached(quick, needed=2)


@pytest.mark.parametrize(
    "answer",
    [
        lambda request: good(request, leap=3),
        lambda request: good(request, stratum=0),
        lambda request: good(request, stratum=16),
        lambda request: good(request, mode=3),
        lambda request: good(bytes(48)),
        lambda request: good(request)[:40],
    ],
    ids=["no time", "kiss of death", "stratum 16", "a request", "another's answer", "cut"],
)
def test_what_is_no_time_does_not_count(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "SECONDS", 0.05)
    with server(answer) as name:
        assert not reached(name)


def test_unknown_and_closed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ask, "SECONDS", 0.05)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        unused.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1 port {unused.getsockname()[1]}"
    asked = f'{{"servers": ["nowhere.invalid", "{closed}"], "needed": 1}}'
    monkeypatch.setattr(ask.sys, "argv", ["ask", asked])
    ask.main()
    said = '{"reached": false, "silent": ["nowhere.invalid: unknown name", "127.0.0.1: no answer"]}\n'
    assert capsys.readouterr().out == said


YES = {"reached": True, "silent": []}
NO = {"reached": False, "silent": ["pool: no answer"]}
HEAD = "so the others follow the clock of node1 (time_sync_mode=head); to name servers of your site: -e"


@pytest.mark.parametrize(
    ("asked", "is_chosen", "mode", "note", "problems"),
    [
        ({"node1": YES, "node2": YES}, False, "public", "", []),
        (
            {"node1": NO, "node2": NO},
            False,
            "head",
            f"no host reaches pool over NTP (UDP port 123), {HEAD}",
            [],
        ),
        ({"node1": YES, "node2": NO}, False, "head", "1 of 2 hosts do not reach pool over NTP", []),
        ({"node1": YES, "node2": NO}, True, "public", "", ["node2"]),
        ({"node2": NO}, False, "public", "", ["node2"]),
        ({}, False, "public", "", []),
    ],
    ids=["all", "none", "some", "the user's choice", "the head's clock is kept", "nobody asks"],
)
def test_the_mode_follows_from_what_the_hosts_reach(
    asked: dict[str, Any], is_chosen: bool, mode: str, note: str, problems: list[str]
) -> None:
    found = plugin.clock_mode(asked, "node1", "pool", is_chosen)
    assert (found["mode"], found["note"][: len(note)], list(found["problems"])) == (mode, note, problems)
    assert all("-e time_sync_mode=head" in problem for problem in found["problems"].values())


def chosen(**given: Any) -> tuple[str, bool]:
    """The mode, and whether the time servers are asked."""
    known = {"node1": {"clock_mode": given.pop("recorded", "")}}
    given = {"muster_seen": SEEN | {"packages": [], "clock_is_kept": False}, "muster_present": []} | given
    names = ("time_sync_chosen", "time_sync_is_to_ask")
    mode, asks = (
        render_value("time_sync", name, {"node1": {}}, muster_known=known, **given) for name in names
    )
    return mode, asks


def test_the_mode_is_the_users_else_the_recorded_one_else_what_the_servers_allow() -> None:
    assert chosen() == ("public", True)
    assert chosen(time_sync_choice={"mode": "head"}) == ("head", True)
    assert chosen(recorded="head", time_sync_choice={"mode": "public"}) == ("head", False)
    assert chosen(recorded="isolated", time_sync_mode="public") == ("public", True)
    assert chosen(recorded="public", muster_present=["/etc/chrony/muster.conf"]) == ("public", False)
    kept = SEEN | {"packages": ["chrony"], "clock_is_kept": True}
    assert chosen(muster_seen=kept) == ("public", False)
    assert chosen(muster_seen=kept, time_sync_choice={"mode": "head"}) == ("head", True)


def test_preflight_names_a_host_whose_servers_do_not_answer() -> None:
    given: dict[str, Any] = {"muster_seen": SEEN, "muster_known": {}}
    choice = {"problems": {"node1": "too few of its time servers answer"}}
    found = problems_of({"node1": {}}, time_sync_choice=choice, **given)
    assert found == ["too few of its time servers answer"]


def test_a_host_tells_for_which_mode_its_clock_was_configured(tmp_path: Any) -> None:
    configuration = tmp_path / "muster.conf"
    assert observe.clock_mode(str(configuration)) == ""
    for mode in ("public", "head", "isolated"):
        text = render("time_sync", "chrony.conf.j2", {"node1": {"addresses": []}}, time_sync_mode=mode)
        configuration.write_text(text)
        assert observe.clock_mode(str(configuration)) == mode
