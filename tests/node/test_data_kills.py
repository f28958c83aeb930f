"""A push that is cut off at any byte, at either end: it goes on, and believes nothing wrong."""

from __future__ import annotations

import os
import random
import secrets
from pathlib import Path
from typing import Any, cast

import pytest

from muster.deploy.core.connect.pipe import Pipe
from muster.deploy.core.errors import UnfitError
from muster.deploy.features.data.data_push import DataPushResult, DataTransfer, read_here, source
from muster.deploy.features.data.wire.manifest import CHUNK
from tests.hosts_here import HostPipe, HostsHere, contents

KILLS = 20


class Scissors:
    """Passes on what the driver writes, counts the bytes of chunks, and at some byte kills an end."""

    def __init__(self, pipe: HostPipe, at: int, end: str) -> None:
        self._pipe, self._at, self._end = pipe, at, end
        self._counts = False
        self.sent = self.written = 0
        self.killed = False

    def write(self, content: bytes, /) -> None:
        """A payload is a write of its own, after the line that announces it (deploy/core/wire/frames.py)."""
        if not self._counts:
            self._counts = content.startswith(b'{"do": "blob_take"')
            self._pipe.writer.write(content)
            return
        self._counts = False
        if not self.killed and self.sent + len(content) > self._at:
            self._kill(content[: self._at - self.sent])
        self.sent += len(content)
        self._pipe.writer.write(content)

    def flush(self) -> None:
        self._pipe.writer.flush()

    def _kill(self, last: bytes) -> None:
        self.killed = True
        self._pipe.writer.write(last)
        self._pipe.writer.flush()
        self.sent += len(last)
        if self._end == "host":
            self._pipe._process.kill()
            self._pipe._process.wait()
            self.sent -= len(last)  # the write that follows counts it
        else:
            self._pipe._process.stdin.close()  # type: ignore[union-attr]
            raise BrokenPipeError


class CutPipe:
    """A pipe with scissors."""

    def __init__(self, pipe: HostPipe, scissors: Scissors) -> None:
        self._pipe, self.writer = pipe, cast(Any, scissors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)


def push(hosts: HostsHere, folder: Path, at: int, end: str) -> tuple[Scissors, DataPushResult | None]:
    """Push, and cut the connection off at an end when `at` bytes of chunks are sent; None if nothing came."""
    made: list[Scissors] = []

    def wrap(host: str, pipe: Pipe) -> Pipe:
        made.append(Scissors(hosts.pipes[host], at, end))
        return CutPipe(hosts.pipes[host], made[0])

    hosts.wrap = wrap
    wanted = source(str(folder), "digits")
    content = read_here(wanted, lambda done, total: None)
    try:
        with hosts.cluster() as cluster:
            carrier = DataTransfer(cluster, wanted, lambda done, total: None, {})
            return made[0], carrier.push(content)
    except UnfitError:
        return made[0], None


def make_folder(root: Path, large: int, small: int) -> int:
    """Fill a folder; return the bytes of its chunks, which all differ."""
    root.mkdir()
    (root / "large").write_bytes(os.urandom(large))
    for number in range(small):
        (root / f"small-{number:04d}").write_bytes(os.urandom(4096))
    return large + 4096 * small


def check(hosts: HostsHere, folder: Path, sent: int, size: int, kills: int) -> None:
    assert contents(hosts.data("node1") / "digits") == contents(folder)
    manifest = 100_000  # sent at most once, and again where it was cut off
    assert sent - size <= kills * CHUNK + manifest, "more than a chunk was sent again for a kill"


@pytest.mark.parametrize("end", ["host", "driver"])
def test_a_push_resumes_after_an_end_of_it_was_killed(tmp_path: Path, end: str) -> None:
    hosts, folder = HostsHere(tmp_path / "hosts", 1), tmp_path / "folder"
    size = make_folder(folder, 3 * CHUNK, 300)
    first, _ = push(hosts, folder, 2 * CHUNK + 1_000_000, end)
    assert first.killed
    assert not (hosts.data("node1") / "digits").exists()
    second, pushed = push(hosts, folder, 1 << 40, end)
    assert pushed and not pushed.failed
    check(hosts, folder, first.sent + second.sent, size, kills=1)


@pytest.mark.soak
def test_twenty_kills_of_either_end_at_random_bytes(tmp_path: Path) -> None:
    seed = int(os.environ.get("MUSTER_SEED", secrets.randbits(32)))
    print(f"MUSTER_SEED={seed}")  # noqa: T201  # pytest shows it with a failure
    chance = random.Random(seed)  # noqa: S311  # repeatable
    hosts, folder = HostsHere(tmp_path / "hosts", 1), tmp_path / "folder"
    size = make_folder(folder, 7 * CHUNK + 12345, 3000)
    killed = sent = kills = 0
    while killed < KILLS:
        scissors, pushed = push(hosts, folder, chance.randrange(size // 4), chance.choice(["host", "driver"]))
        sent, kills, killed = sent + scissors.sent, kills + scissors.killed, killed + scissors.killed
        if pushed and not pushed.failed:
            check(hosts, folder, sent, size, kills)
            sent = kills = 0
            hosts = HostsHere(tmp_path / f"hosts-{killed}", 1)
    last, pushed = push(hosts, folder, 1 << 40, "host")
    assert pushed and not pushed.failed
    check(hosts, folder, sent + last.sent, size, kills)
