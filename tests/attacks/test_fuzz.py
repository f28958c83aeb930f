"""A minute of random input at each boundary; the seed is printed, and SEED=... repeats a run."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.agent.main import Agent
from muster.deploy.core.connect import reports
from muster.deploy.core.connect.requests import FACTS, Request
from muster.deploy.core.errors import HostfileError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.wire.frames import read_frame
from muster.deploy.core.wire.store import Store
from muster.deploy.features.check.messages import HEALTH
from tests.attacks.honest import ANSWERS, REPORTS
from tests.attacks.test_boundary import EVIL

SECONDS = float(os.environ.get("FUZZ_SECONDS", "60"))
SEED = int(os.environ.get("SEED", time.time_ns() % 1_000_000_000))
HOSTS = "node1 slots=4  # head\nnode[01-16,20] slots=8 user=ml\ngpu-a port=2222 addr=10.0.0.[7-9]\n"
Attack = Callable[[random.Random, Path], None]


def mutated(chance: random.Random, text: bytes) -> bytes:
    """A text with some bytes changed, removed, repeated or added."""
    content = bytearray(text)
    for _ in range(chance.randint(1, 8)):
        place = chance.randrange(len(content) + 1)
        match chance.randrange(4):
            case 0:
                content[place:place] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 4)))
            case 1:
                del content[place : place + chance.randint(1, 8)]
            case 2:
                content[place:place] = content[place : place + 20] * chance.randint(1, 9)
            case _:
                content[place:place] = chance.choice([b"[", b"{", b'"', b"\\", b"-", b"9" * 20, b"\n", b"\0"])
    return bytes(content)


def twisted(chance: random.Random, value: Any) -> Any:
    """A value of JSON with some of its parts replaced."""
    if chance.random() < 0.15:
        return chance.choice([evil for evil in EVIL if not isinstance(evil, (list, str)) or len(evil) < 1000])
    if isinstance(value, dict):
        return {name: twisted(chance, inner) for name, inner in value.items() if chance.random() > 0.05}
    if isinstance(value, list):
        return [twisted(chance, inner) for inner in value]
    return value


def attack_frames(chance: random.Random, folder: Path) -> None:
    word = chance.choice([*REPORTS])
    line = json.dumps({"event": word, "size": chance.randint(-1, 9), **REPORTS[word]}).encode() + b"\n"
    with contextlib.suppress(ValueError):
        read_frame(io.BytesIO(mutated(chance, line)), 1 << 16, reports.room)


def attack_reports(chance: random.Random, folder: Path) -> None:
    word = chance.choice([*REPORTS])
    with contextlib.suppress(ValueError, TypeError):
        reports.of_frame({"event": word, **twisted(chance, REPORTS[word])} if chance.random() else {})


def attack_facts(chance: random.Random, folder: Path) -> None:
    request: Request[Any] = chance.choice((FACTS, HEALTH))
    with contextlib.suppress(ValueError):
        request.read(twisted(chance, ANSWERS[request.name]))


def attack_hosts_files(chance: random.Random, folder: Path) -> None:
    with contextlib.suppress(HostfileError):
        hostfile.parse(mutated(chance, HOSTS.encode()).decode(errors="replace"))


def attack_archives(chance: random.Random, folder: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo("ab" * 32)
        member.size = 9
        tar.addfile(member, io.BytesIO(b"something"))
    with contextlib.suppress(OSError):
        Store(folder / "store").add(mutated(chance, buffer.getvalue()))


def attack_agent(chance: random.Random, folder: Path) -> None:
    """Requests that no driver sends; none that starts, ends or removes something of this machine."""
    words = ["time", "missing", "store", "jobs", "output", "files", "read", "file", "file_part", "nothing"]
    honest = {"job": "x", "digests": ["ab"], "name": "x", "path": "x", "rank": 1, "start": 0, "most": 9}
    request = {name: twisted(chance, value) for name, value in honest.items()}
    Agent(io.BytesIO(), io.BytesIO()).answer({"do": chance.choice(words), "id": 1, **request}, b"x")


ATTACKS: dict[str, Attack] = {
    "frames": attack_frames,
    "reports": attack_reports,
    "facts": attack_facts,
    "hosts files": attack_hosts_files,
    "archives": attack_archives,
    "agent": attack_agent,
}


def rounds(seconds: float) -> Iterator[int]:
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        yield number
        number += 1


@pytest.mark.parametrize("name", ATTACKS)
def test_random_input_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for number in range(300):
        ATTACKS[name](random.Random(number), tmp_path)  # noqa: S311


@pytest.mark.soak
@pytest.mark.parametrize("name", ATTACKS)
def test_random_input_of_a_minute(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for number in rounds(SECONDS / len(ATTACKS)):
        seed = SEED + number
        try:
            ATTACKS[name](random.Random(seed), tmp_path)  # noqa: S311
        except Exception:
            print(f"{name}: SEED={seed}")  # noqa: T201  # repeats this round alone
            raise
    print(f"{name}: {number + 1} inputs, from SEED={SEED} on")  # noqa: T201
