"""Hosts of one push, strangers on their network, and a reader of everything that passes between them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import ssl
import sys
import threading
from pathlib import Path

import pytest

from muster.deploy.core.agent import transfers as peers
from muster.deploy.core.agent.facts import host_addresses
from muster.deploy.core.agent.transfers import Blobs, Peer, Server, WantedFile, identity
from muster.deploy.core.content.transfer_state import identities
from muster.deploy.core.wire.certificate_name import certificate_name

HERE = "127.0.0.1"
CONTENT = b"a chunk that only the hosts of the push may read; " * 20_000
DIGEST = hashlib.sha256(CONTENT).hexdigest()
WANTED = WantedFile(DIGEST, len(CONTENT))
PUSH, OTHER_PUSH = identities(["node1", "node2"]), identities(["node1", "node2"])


@pytest.fixture
def node1(tmp_path: Path) -> Peer:
    """A host that has the file, and serves it."""
    blobs = Blobs(tmp_path / "node1")
    blobs.append(DIGEST, 0, CONTENT)
    blobs.complete(DIGEST)
    return Peer("node1", HERE, Server(blobs, identity(PUSH["node1"]), [HERE]).port)


@pytest.fixture
def here(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "node2")


class Tap:
    """A place between two hosts that forwards everything, and keeps a copy."""

    def __init__(self, target: Peer) -> None:
        self.seen: list[bytes] = []
        self._target, self._listener = target, socket.create_server((HERE, 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        caller, _ = self._listener.accept()
        server = socket.create_connection((self._target.address, self._target.port))
        threading.Thread(target=self._forward, args=(caller, server), daemon=True).start()
        self._forward(server, caller)

    def _forward(self, giver: socket.socket, taker: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := giver.recv(1 << 16):
                self.seen.append(content)
                taker.sendall(content)
            taker.shutdown(socket.SHUT_WR)


def test_who_reads_the_network_finds_neither_content_nor_names(node1: Peer, here: Blobs) -> None:
    tap = Tap(node1)
    [*peers.pull(here, identity(PUSH["node2"]), WANTED, [node1._replace(port=tap.port)])]
    assert here.path(DIGEST).read_bytes() == CONTENT
    seen = b"".join(tap.seen)
    assert len(seen) > len(CONTENT), "it all went this way"
    for text in (CONTENT[:20], DIGEST.encode(), b"node1", b"node2", b"PRIVATE KEY"):
        assert text not in seen


def test_who_speaks_no_tls_gets_nothing_and_learns_nothing(node1: Peer) -> None:
    with socket.create_connection((node1.address, node1.port)) as stranger:
        stranger.sendall(json.dumps({**WANTED._asdict(), "offset": 0}).encode() + b"\n")
        said = b""
        with contextlib.suppress(ConnectionError):
            while some := stranger.recv(1 << 16):
                said += some
    assert len(said) <= 7, "an alert of TLS at most"


@pytest.mark.parametrize("shows", [None, "node2"], ids=["no certificate", "one of another push"])
def test_a_stranger_who_speaks_tls_gets_nothing(node1: Peer, shows: str | None) -> None:
    context = identity(OTHER_PUSH[shows]).client if shows else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    said = b""
    with (
        contextlib.suppress(OSError),
        socket.create_connection((node1.address, node1.port)) as raw,
        context.wrap_socket(raw) as stranger,
    ):
        stranger.sendall(json.dumps({**WANTED._asdict(), "offset": 0}).encode() + b"\n")
        said = stranger.recv(1 << 16)
    assert said == b""


def test_a_host_with_another_certificate_feeds_no_host_and_is_named(here: Blobs, tmp_path: Path) -> None:
    wrong = Blobs(tmp_path / "stranger")
    wrong.append(DIGEST, 0, CONTENT)
    port = Server(wrong, identity(OTHER_PUSH["node1"]), [HERE]).port
    with pytest.raises(OSError, match=rf"node1 at {HERE} port {port}: another machine answers there: "):
        [*peers.pull(here, identity(PUSH["node2"]), WANTED, [Peer("node1", HERE, port)])]
    assert here.size(DIGEST) == 0


def test_a_host_that_answers_in_place_of_another_is_refused(node1: Peer, here: Blobs) -> None:
    with pytest.raises(OSError, match=r"node7 at .*: another host of this push answers there"):
        [*peers.pull(here, identity(PUSH["node2"]), WANTED, [node1._replace(host="node7")])]
    assert here.size(DIGEST) == 0


def test_who_answers_without_tls_feeds_no_host_and_is_named(here: Blobs) -> None:
    def answer() -> None:
        caller, _ = listener.accept()
        with caller:
            caller.sendall(CONTENT[:100])

    with socket.create_server((HERE, 0)) as listener:
        threading.Thread(target=answer, daemon=True).start()
        place = Peer("node1", HERE, listener.getsockname()[1])
        with pytest.raises(OSError, match=r"node1 at .*: no answer in TLS"):
            [*peers.pull(here, identity(PUSH["node2"]), WANTED, [place])]
    assert here.size(DIGEST) == 0


def test_a_key_is_in_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    load, paths = ssl.SSLContext.load_cert_chain, list[str]()

    def recorded(context: ssl.SSLContext, certificate: str, key: str) -> None:
        paths.extend([certificate, key])
        load(context, certificate, key)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", recorded)
    identity(PUSH["node1"])
    assert len(paths) == 4
    assert all(path.startswith("/proc/self/fd/") for path in paths), "pipes"


def test_a_python_without_ssl_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ssl", None)
    with pytest.raises(OSError, match="its Python has no module ssl"):
        identity(PUSH["node1"])


# -- where a host listens --


def reaches(address: str, port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection((address, port), 5).close()
        return True
    return False


def test_the_port_is_open_at_one_address_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setattr(peers, "PORTS", range(port, port + 1))
    addresses = peers.addresses_for(["127.0.0.2"], ["10.0.0.1"])
    assert Server(Blobs(tmp_path), identity(PUSH["node1"]), addresses).port == port
    others = [HERE, "127.0.0.3", *(address for _, address in host_addresses())]
    assert reaches("127.0.0.2", port)
    assert [other for other in others if reaches(other, port)] == []


def test_names_of_peers_are_not_asked_for() -> None:
    """A name server that keeps silent would keep the push waiting."""
    own = {address for _, address in host_addresses()} or {HERE}
    found = peers.addresses_for([], ["no-such-name.invalid", "localhost"])
    assert own >= {*found}
    assert len(found) == min(len(own), peers.MOST_ADDRESSES)


def test_without_a_choice_a_host_listens_where_it_would_call_its_peers() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # an address for documentation (RFC 5737): by the default route
        assert peers.addresses_for([], ["192.0.2.1"]) == [probe.getsockname()[0]]


@pytest.mark.parametrize(
    ("chosen", "peers_", "found"),
    [
        ([HERE], ["192.0.2.1"], [HERE]),
        (["::1"], [], ["::1"]),
        ([], [], [HERE]),
        (["192.0.2.7"], [], [HERE]),
        (["no-such-name.invalid"], [], [HERE]),
        (["localhost"], [], [HERE]),
    ],
    ids=["the user's", "IPv6", "alone", "a router's", "unknown", "a name that means every host itself"],
)
def test_a_host_listens(chosen: list[str], peers_: list[str], found: list[str]) -> None:
    assert peers.addresses_for(chosen, peers_) == found


def test_names_of_hosts_may_be_longer_than_those_of_certificates() -> None:
    name = certificate_name("gpu_" + "x" * 300 + ".é")
    assert name.isascii()
    assert len(name) < 64
