"""The processes that a rank without memory on its GPU has found there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.deploy.core.wire.users import name_of
from muster.deploy.features.samples.on_host import sampler
from muster.deploy.features.samples.on_host.sampler import others_on_gpu
from tests.waiting import wait_until

WRAPPER = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"


@pytest.fixture
def wrapper() -> Iterator[subprocess.Popen[bytes]]:
    """The wrapper of a rank, with its program below it."""
    with subprocess.Popen([sys.executable, "-c", WRAPPER], stdin=subprocess.PIPE) as process:
        yield process
        process.communicate()


def full(*pids: int) -> str:
    others = "".join(f"Process {pid} has 70.25 GiB memory in use. " for pid in pids)
    return f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. {others}\n"


def test_each_live_user_is_named(wrapper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "INITIAL", Path("/proc/self/ns/pid").stat().st_ino)
    children = Path(f"/proc/{wrapper.pid}/task/{wrapper.pid}/children")
    program = int(wait_until(lambda: children.read_text().split(), "the program")[0])
    found = others_on_gpu([full(program, os.getpid(), 4_000_000), "\n"], {3: wrapper.pid})
    assert [(user["pid"], user.get("rank")) for user in found] == [(program, 3), (os.getpid(), None)]
    assert {user["user"] for user in found} == {name_of(os.getuid())}
    assert found[1]["program"] == Path(f"/proc/{os.getpid()}/comm").read_text().strip()


def test_without_the_numbers_of_the_host_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "INITIAL", 1)
    assert others_on_gpu([full(os.getpid())], {}) == []


def test_a_message_about_no_other_process_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "INITIAL", Path("/proc/self/ns/pid").stat().st_ino)
    assert others_on_gpu([full(), f"Process {os.getpid()} has 1 GiB memory in use"], {}) == []
