"""Files on their way from host to host: through one that still gets them, on from where they stopped."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.deploy.core.agent import transfers as module
from muster.deploy.core.agent.transfers import Blobs, Identity, Peer, Server, WantedFile, identity
from muster.deploy.core.content.transfer_state import identities
from tests.damage import DAMAGE
from tests.waiting import wait_until

CONTENT = os.urandom(3_000_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
WANTED = WantedFile(DIGEST, len(CONTENT))
IDENTITIES = {name: identity(words) for name, words in identities("abc").items()}


def silent(have: int) -> None:
    """Nobody listens."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what never comes: where bytes do come, a busy machine may take a second to bring them."""
    monkeypatch.setattr(module, "WAIT_SECONDS", 1.0)


@pytest.fixture
def host(tmp_path: Path) -> Callable[[str], tuple[Blobs, Peer]]:
    def make(name: str) -> tuple[Blobs, Peer]:
        blobs = Blobs(tmp_path / name)
        return blobs, Peer(name, "127.0.0.1", Server(blobs, IDENTITIES[name], ["127.0.0.1"]).port)

    return make


Make = Callable[[str], tuple[Blobs, Peer]]


def pull(
    blobs: Blobs,
    wanted: WantedFile,
    sources: list[Peer],
    tell: Callable[[int], None],
    who: Identity = IDENTITIES["c"],
) -> None:
    """What a host does that wants a file."""
    for have in module.pull(blobs, who, wanted, sources):
        tell(have)


def test_a_file_passes_through_a_host_that_is_still_getting_it(host: Make) -> None:
    (first, source), (second, relay), (third, _) = host("a"), host("b"), host("c")
    told: list[int] = []
    pulls = [
        threading.Thread(target=pull, args=(second, WANTED, [source], silent)),
        threading.Thread(target=pull, args=(third, WANTED, [relay], told.append)),
    ]
    for one in pulls:
        one.start()
    half = len(CONTENT) // 2
    first.append(DIGEST, 0, CONTENT[:half])
    wait_until(lambda: third.size(DIGEST) >= half, "the first half at the third host", pause=0.01)
    assert (third.size(DIGEST), third.has(DIGEST)) == (half, False)
    first.append(DIGEST, half, CONTENT[half:])
    first.complete(DIGEST)
    for one in pulls:
        one.join(60)
    assert [one.path(DIGEST).read_bytes() == CONTENT for one in (first, second, third)] == [True] * 3
    assert told == sorted(told)
    assert told[-1] == len(CONTENT)


def test_a_transfer_goes_on_also_from_another_host(host: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    (some, dead), (whole, alive), (here, _) = host("a"), host("b"), host("c")
    # What read() gives where no further byte comes for a while; here at once.
    monkeypatch.setattr(some, "read", lambda digest, offset, size: iter([CONTENT[offset:1000]]))
    whole.append(DIGEST, 0, CONTENT)
    whole.complete(DIGEST)
    here.append(DIGEST, 0, CONTENT[:500])
    told: list[int] = []
    pull(here, WANTED, [dead, alive], told.append)
    assert told[0] == 1000
    assert here.path(DIGEST).read_bytes() == CONTENT


@pytest.mark.usefixtures("impatient")
def test_a_host_serves_nothing_that_it_does_not_have(host: Make) -> None:
    (there, place), (here, _) = host("a"), host("b")
    there.append(DIGEST, 0, CONTENT)
    with pytest.raises(OSError, match="a: has only 0 of 10 bytes"):
        pull(here, WantedFile("0" * 64, 10), [place], silent)


def test_callers_that_say_nothing_are_few_and_keep_no_host_from_a_file(host: Make) -> None:
    (there, place), (here, _) = host("a"), host("b")
    there.append(DIGEST, 0, CONTENT)
    before = threading.active_count()
    idle = [socket.create_connection(("127.0.0.1", place.port)) for _ in range(module.MOST_UNPROVEN + 40)]
    for caller in idle[:40]:
        caller.settimeout(60)
        assert caller.recv(1) == b"", "the oldest are hung up on"
    pull(here, WANTED, [place], silent)
    assert here.has(DIGEST)
    wait_until(
        lambda: threading.active_count() <= before + module.MOST_UNPROVEN,
        "the end of the threads",
        pause=0.05,
    )
    for caller in idle:
        caller.close()


def test_what_was_damaged_is_not_believed_and_is_gone(host: Make) -> None:
    (there, place), (here, _) = host("a"), host("b")
    there.append(DIGEST, 0, CONTENT[:-1] + b"\0")
    with pytest.raises(ValueError, match="damaged on the way"):
        pull(here, WANTED, [place], silent)
    assert here.size(DIGEST) == 0


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_file_that_was_damaged_since_an_earlier_push_comes_again(host: Make, kind: str) -> None:
    (there, place), (here, _) = host("a"), host("b")
    for blobs in (there, here):
        blobs.append(DIGEST, 0, CONTENT)
        blobs.complete(DIGEST)
        assert blobs.intact_size(DIGEST) == len(CONTENT)
    DAMAGE[kind](here.path(DIGEST))
    assert here.intact_size(DIGEST) == 0
    pull(here, WANTED, [place], silent)
    assert here.path(DIGEST).read_bytes() == CONTENT


def test_a_source_that_drips_is_left_for_another(host: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def trickle(digest: str, offset: int, size: int) -> Iterator[bytes]:
        while not over.wait(0.05):
            yield b"\0"

    (slow, place), (whole, alive), (here, _), over = host("a"), host("b"), host("c"), threading.Event()
    monkeypatch.setattr(module, "SLOW_SECONDS", 0.3)
    monkeypatch.setattr(slow, "read", trickle)
    whole.append(DIGEST, 0, CONTENT)
    whole.complete(DIGEST)
    here.append(DIGEST, 0, CONTENT[:500])
    try:
        with pytest.raises(ValueError, match="damaged on the way"):  # by the bytes of the slow one
            pull(here, WANTED, [place, alive], silent)
    finally:
        over.set()
    pull(here, WANTED, [alive], silent)
    assert here.path(DIGEST).read_bytes() == CONTENT


def test_every_source_that_failed_is_named(host: Make) -> None:
    (here, _), nowhere = host("a"), Peer("gone", "127.0.0.1", 1)
    with pytest.raises(OSError, match=r"gone at 127.0.0.1 port 1: Connection refused"):
        pull(here, WANTED, [nowhere], silent)


def test_two_agents_may_bring_the_same_file(host: Make, tmp_path: Path) -> None:
    """Of hosts with the same home, or of two commands: each sends what it knows to be lacking."""
    (one, _), other = host("a"), Blobs(tmp_path / "a")
    half, piece = len(CONTENT) // 2, 1 << 18
    one.append(DIGEST, 0, CONTENT[:half])
    for at in range(0, len(CONTENT), piece):
        for blobs in (other, one):
            blobs.append(DIGEST, at, CONTENT[at : at + piece])
    other.complete(DIGEST)
    one.complete(DIGEST)
    one.append(DIGEST, 0, CONTENT[:piece])
    assert one.path(DIGEST).read_bytes() == CONTENT
    assert [path.name for path in one.root.iterdir()] == [DIGEST]


def test_bytes_that_do_not_follow_are_refused(host: Make) -> None:
    here, _ = host("a")
    here.append(DIGEST, 0, b"abc")
    with pytest.raises(ValueError, match="3 bytes have arrived, and these begin at 5"):
        here.append(DIGEST, 5, b"x")


@pytest.mark.parametrize("digest", ["../../etc/passwd", "", "a" * 63])
def test_a_name_that_is_no_digest_is_refused(host: Make, digest: str) -> None:
    here, _ = host("a")
    with pytest.raises(ValueError, match="not a SHA-256"):
        here.append(digest, 0, b"x")
