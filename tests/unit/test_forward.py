"""A connection that is passed on through an agent, and who may make one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import cast

import pytest

from muster.deploy.cli.dispatch import run
from muster.deploy.core.connect.channel import Channel
from muster.deploy.core.errors import UsageError
from muster.deploy.features.forward import command as peers
from muster.deploy.features.forward.command import Forwarder, Target, listen
from muster.deploy.features.forward.wire import CHUNK_BYTES, WINDOW, Stream
from tests.waiting import PATIENCE, wait_until


class Passage:
    """A program, an agent's stream, the driver's stream and a client, one after the other."""

    def __init__(self) -> None:
        self.client, mine = socket.socketpair()
        theirs, self.program = socket.socketpair()
        for end in (self.client, self.program):
            end.settimeout(PATIENCE)
        self.over = [threading.Event(), threading.Event()]
        self.in_flight = self.most = 0
        self._lock, self.ends = threading.Lock(), list[Stream]()
        for number, connection in enumerate((mine, theirs)):
            self.ends.append(self._end(number, connection))
        for end_ in self.ends:
            end_.start()

    def _end(self, number: int, connection: socket.socket) -> Stream:
        def pass_on(part: bytes) -> None:
            with self._lock:
                self.in_flight += 1
                self.most = max(self.most, self.in_flight)
            self.ends[1 - number].put(part)

        def taken() -> None:
            with self._lock:
                self.in_flight -= 1
            self.ends[1 - number].acknowledge()

        return Stream(
            connection,
            pass_on=pass_on,
            taken=taken,
            broken=lambda: self.ends[1 - number].close(),  # noqa: PLW0108  # made later
            over=self.over[number].set,
        )


@pytest.fixture
def passage() -> Iterator[Passage]:
    made = Passage()
    yield made
    for end in (made.client, made.program):
        end.close()


def test_bytes_come_through_whole_both_ways_and_an_end_of_one_way_leaves_the_other(passage: Passage) -> None:
    question, answer = bytes(range(256)) * 9000, b"done" * 100_000
    got = bytearray()

    def program() -> None:
        while part := passage.program.recv(1 << 16):
            got.extend(part)
        passage.program.sendall(answer)
        passage.program.close()

    thread = threading.Thread(target=program)
    thread.start()
    passage.client.sendall(question)
    passage.client.shutdown(socket.SHUT_WR)
    with passage.client.makefile("rb") as stream:
        assert stream.read() == answer
    thread.join(PATIENCE)
    assert bytes(got) == question
    assert all(over.wait(PATIENCE) for over in passage.over)


def test_a_program_that_does_not_read_holds_no_more_than_the_window(passage: Passage) -> None:
    def send() -> None:
        passage.client.sendall(bytes(4 * WINDOW * CHUNK_BYTES))

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    wait_until(lambda: passage.in_flight >= WINDOW, "a full window")
    left = 4 * WINDOW * CHUNK_BYTES
    while left:
        left -= len(passage.program.recv(1 << 20))
    sender.join(PATIENCE)
    assert passage.most <= WINDOW


def test_a_client_that_is_gone_ends_the_program_s_connection(passage: Passage) -> None:
    passage.client.close()
    assert passage.program.recv(1) == b""
    with pytest.raises(OSError):
        while True:
            passage.program.sendall(bytes(CHUNK_BYTES))
    assert all(over.wait(PATIENCE) for over in passage.over)


def test_an_end_that_sends_more_than_the_window_is_refused() -> None:
    end = Stream(socket.socketpair()[0], pass_on=bytes, taken=dict, broken=dict, over=dict)
    with pytest.raises(ValueError, match="parts that are not taken"):
        for _ in range(2 * WINDOW):
            end.put(b"x")


# ---- who may connect --------------------------------------------------------------------------------------

_ROW = (
    "   0: 0100007F:{port:04X} 0100007F:162E {state} 00000000:00000000 00:00000000 00000000 {rest} 3 00000000"
)
TABLE = "\n".join(
    (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode",
        _ROW.format(port=40000, state="01", rest="1001 0 4712"),
        _ROW.format(port=40001, state="05", rest="0 0 0"),  # its program has ended
    )
)


@pytest.mark.parametrize(("port", "user"), [(40000, 1001), (40001, None), (40002, None)])
def test_the_kernel_names_the_user(monkeypatch: pytest.MonkeyPatch, port: int, user: int | None) -> None:
    monkeypatch.setattr("sys.byteorder", "little")
    assert peers.owner(TABLE, ("127.0.0.1", port), ("127.0.0.1", 5678)) == user


class Host:
    """Plays the channel to a host."""

    host, was_asked = "node2", False

    def report_to(self, events: object) -> None:
        pass

    def ask(self, request: object, **words: object) -> None:
        self.was_asked = True


def test_another_users_connection_is_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    notes, host = list[str](), Host()
    served = Forwarder(cast("Channel", host), Target("j", "node2", 6006), notes.append)
    monkeypatch.setattr(peers, "owner", lambda *_: 4321)
    with listen(0) as here:
        threading.Thread(target=served._accept, args=(here,), daemon=True).start()
        for _ in range(2):  # the note is not repeated
            with socket.create_connection(here.getsockname()) as client:
                client.settimeout(PATIENCE)
                assert client.recv(1) == b""
        wait_until(lambda: notes, "the note")
    assert notes == ["a connection was refused: it is from another user of this machine, 4321"]
    assert not host.was_asked


def test_a_port_that_is_taken_is_an_error_with_a_remedy() -> None:
    with listen(0) as here:
        port = here.getsockname()[1]
        with pytest.raises(UsageError, match=rf"port {port} of 127.0.0.1 on this machine: .*--port 0"):
            listen(port)


@pytest.mark.parametrize(
    ("pair", "right"),
    [
        ("16007:6006", "6006 --port 16007"),
        ("127.0.0.1:16007:6006", "6006 --port 16007"),
        ("16007:localhost:6006", "6006 --port 16007"),
        (":6006", "6006"),
        ("node2:6006", "6006"),
    ],
)
def test_a_port_pair_has_a_right_form(pair: str, right: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["forward", "JOB", pair]) == 2
    assert capsys.readouterr().err.endswith(f"muster forward JOB {right}\n")
