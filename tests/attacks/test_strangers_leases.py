"""Another user of a host who writes what they like into the folder of leases costs others nothing.

The stranger is a process with another uid, so these tests run as root.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.wire.users import name_of
from muster.deploy.features.leases.messages import LEASE, LEASES
from muster.deploy.features.leases.on_host import claims, leases
from muster.deploy.features.leases.on_host.leases import Device, Devices
from tests.node.test_host_leases import HOLDS, wanted

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root for a second user")
STRANGER = 61_234
ACTS = """
import fcntl, os, sys
folder, uid, acts = sys.argv[1], int(sys.argv[2]), eval(sys.stdin.readline())
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
kept = []
for act, name, content in acts:
    path = os.path.join(folder, name)
    if act == "link":
        os.symlink(content, path)
    elif act == "folder":
        os.mkdir(path, 0)
    elif act == "pipe":
        os.mkfifo(path)
    elif act == "file":
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, content))
    elif act == "lock":
        kept.append(os.open(path, os.O_RDONLY))
        fcntl.flock(kept[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        kept.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644))
        fcntl.flock(kept[-1], fcntl.LOCK_EX)
        os.write(kept[-1], content)
print("done", flush=True)
sys.stdin.read()
"""
Act = tuple[str, str, Any]
ALL = [f"GPU-{number}" for number in range(8)]
JOB = "20261127-000000-aaaa"


def text(**fields: Any) -> bytes:
    plain = {"job": JOB, "by": "", "since": 1.0, "queued": 0.0, "has": {}, "wants": None}
    return json.dumps({**plain, **fields}).encode()


def raw(old: bytes, new: bytes, **fields: Any) -> bytes:
    return text(**fields).replace(old, new)


HAS = dict.fromkeys(ALL, 0)
WRONG: dict[str, bytes] = {
    "nothing": b"",
    "bytes": b"\xff\xfe\0",
    "no object": b"[1]",
    "deep": b"[" * 4000,
    "a missing field": b'{"job": "x", "has": {"GPU-0": 0}}',
    "a long job": text(job="," * 60_000, has=HAS),
    "a job of 65 characters": text(job="x" * 65, has=HAS),
    "escape sequences": text(job="\x1b]0;owned\x07\x1b[2J\u202eevil\nDONE", has=HAS),
    "a job that is a list": text(job=["x"], has=HAS),
    "infinity as a GPU": raw(b'"GPU-7": 0', b'"GPU-7": 1e999', has=HAS),
    "a GPU of minus one": text(has={**HAS, "GPU-7": -1}),
    "a huge GPU": text(has={**HAS, "GPU-7": 1 << 70}),
    "true as a GPU": text(has={**HAS, "GPU-7": True}),
    "a GPU with a slash": text(has={**HAS, "../GPU": 1}),
    "GPUs as a text": text(has="GPU-0"),
    "since infinity": text(has=HAS, since=float("inf")),
    "since nan": text(has=HAS, since=float("nan")),
    "since a text": text(has=HAS, since="now"),
    "queued long ago": text(wants=[8, ALL], queued=-1e300),
    "queued at minus infinity": text(wants=[8, ALL], queued=float("-inf")),
    "wants too many": text(wants=[1 << 70, ALL]),
    "wants a text": text(wants=[8, "GPU-0"]),
    "wants one word": text(wants="GPU-0"),
    "more than 4 KiB": text(has=HAS) + b" " * 4096,
}


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder like /tmp, on a host with eight GPUs."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's own folder is closed to others
    made.chmod(0o1777)
    gpus = [Device(number, name) for number, name in enumerate(ALL)]
    monkeypatch.setattr(claims, "SETUP", str(made / "none"))
    monkeypatch.setattr(claims, "WITHOUT_SETUP", str(made))
    monkeypatch.setattr(leases, "look", lambda: Devices("nvidia", gpus))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield made
    shutil.rmtree(made)


@contextmanager
def stranger(folder: Path, *acts: Act) -> Iterator[int]:
    """A process of another user that has done this, and holds its locks; yields its number."""
    words = [sys.executable, "-c", ACTS, str(folder), str(STRANGER)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        process.stdin.write(f"{acts!r}\n".encode())
        process.stdin.flush()
        assert process.stdout
        assert process.stdout.readline() == b"done\n"
        yield process.pid
        process.communicate()


@pytest.fixture
def take() -> Iterator[Callable[..., Any]]:
    """Leases GPUs for a job; its answer as the driver reads it."""
    agents: dict[str, leases.Leases] = {}

    def ask(job: str, gpus: int, **more: Any) -> Any:
        answer = agents.setdefault(job, leases.Leases()).do_lease(wanted(job, gpus, **more), b"")
        return LEASE.read(json.loads(json.dumps(answer)))

    yield ask
    for agent in agents.values():
        agent.close()


def free() -> Any:
    """What `muster free` gets."""
    return LEASES.read(json.loads(json.dumps(leases.Leases().do_leases({}, b""))))


def test_a_claim_that_is_wrong_in_any_field_is_skipped(folder: Path, take: Callable[..., Any]) -> None:
    acts = [("claim", f"{claims.CLAIM}{number}", wrong) for number, wrong in enumerate(WRONG.values())]
    with stranger(folder, *acts):
        assert take("a", 8).ready
        assert [(gpu.job, gpu.user) for gpu in free().gpus] == [("a", name_of(0))] * 8
    for wrong in WRONG.values():  # not one because of another field
        with pytest.raises(claims.MALFORMED):
            claims.parse(wrong)


def test_a_right_claim_is_shown_with_the_owner_of_its_file(folder: Path, take: Callable[..., Any]) -> None:
    acts = (
        ("claim", f"{claims.CLAIM}1", text(has={"GPU-1": 1, "GPU-2": 2}, by="root")),
        ("claim", f"{claims.CLAIM}2", text(has={"GPU-3": 3}, by="\x1b[31mroot\n")),
    )
    with stranger(folder, *acts):
        refused = take("a", 6)
        users = [f"root ({STRANGER})"] * 2 + [str(STRANGER)]
        assert [(gpu.index, gpu.user) for gpu in refused.taken] == [*zip((1, 2, 3), users, strict=True)]
        assert take("a", 5).ready
        assert refused.beside == (str(STRANGER),)
    assert take("b", 3).beside == ()


def test_a_strangers_lock_keeps_no_dead_claim_alive(folder: Path, take: Callable[..., Any]) -> None:
    words = [sys.executable, "-c", HOLDS, str(folder), repr(wanted("a", 8))]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        assert agent.stdout
        assert agent.stdout.readline() == b"8\n"
        agent.kill()
    (claim,) = folder.glob(f"{claims.CLAIM}*")
    with stranger(folder, ("lock", claim.name, None)):
        assert take("b", 8).ready


def test_many_files_of_a_stranger_hide_no_claim(folder: Path, take: Callable[..., Any]) -> None:
    with stranger(folder, *(("file", f"{claims.CLAIM}0{number:05}", 0o644) for number in range(4200))):
        assert take("a", 2).ready
        assert take("b", 6).ready
        assert take("c", 1).ready is False


def test_no_claim_of_a_user_with_many_is_left_out(
    folder: Path, take: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue of many jobs hid the lease among them."""
    queue = [("claim", f"{claims.CLAIM}{number}", text(wants=[1, ["GPU-7"]])) for number in range(99)]
    with stranger(folder, *queue, ("claim", f"{claims.CLAIM}99", text(has={"GPU-0": 0}))):
        assert "GPU-0" in {name for claim in claims.living_claims() for name in claim.has}
        monkeypatch.setattr(claims, "MOST_OF_USER", 99)
        with pytest.raises(OSError, match=f"{STRANGER} has 100 files .*; have them removed"):
            take("a", 1)
        assert "has 100 files" in free().problem


def test_a_later_job_waits_longer_whatever_its_date(folder: Path, take: Callable[..., Any]) -> None:
    take("a", 6)
    assert not take("first", 8).ready
    with stranger(folder, ("claim", f"{claims.CLAIM}1", text(wants=[8, ALL], queued=0.0))):
        assert [(each.job, each.user) for each in free().waiting] == [
            ("first", name_of(0)),
            (JOB, str(STRANGER)),
        ]
        take("a", 0)
        assert take("first", 8).ready
        refused = take("late", 1)
        assert {gpu.job for gpu in refused.taken} == {"first"}
