"""Why py-spy cannot read a rank, also where somebody else has waited for it first."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.deploy.core.wire.paths import MusterPaths
from muster.deploy.core.wire.store import Store
from muster.deploy.features.why.in_rank.muster_ring import RECORDER
from muster.deploy.features.why.on_host.evidence import RankEvidence, take_stacks
from tests.damage import DAMAGE


@pytest.fixture
def reaped() -> Iterator[None]:
    """The end of every child is taken before subprocess asks for it, as the agent's Reaper may do."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("reaped")
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("echo 'Error: Permission denied' >&2; exit 1", "Error: Permission denied"),
        ("exit 1", "py-spy printed no stack"),
    ],
)
def test_the_reason_of_a_py_spy_that_failed_is_told(tmp_path: Path, program: str, reason: str) -> None:
    tool = tmp_path / "py-spy"
    tool.write_text(f"#!/bin/sh\n{program}\n")
    tool.chmod(0o755)
    assert take_stacks(str(tool), {3: (1, "S")}, "/code") == {"3": {"error": reason}}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_py_spy_never_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda *words, **more: None)  # this host has none of its own
    stacks = RankEvidence(tmp_path)
    store = Store(Path(MusterPaths(str(tmp_path)).store))
    program = b"#!/bin/sh\nexit 0\n"
    digest = hashlib.sha256(program).hexdigest()

    def send() -> None:
        """As the driver does before it asks for stacks."""
        if store.missing([digest], verify=True):
            draft = tmp_path / "draft"
            draft.write_bytes(program)
            store.path(digest).parent.mkdir(parents=True, exist_ok=True)
            draft.replace(store.path(digest))

    send()
    tool = Path(stacks._py_spy(digest))
    DAMAGE[kind](tool)
    DAMAGE[kind](store.path(digest))
    send()
    assert Path(stacks._py_spy(digest)).read_bytes() == program
    assert os.access(tool, os.X_OK)


def test_where_a_program_is_over_the_thread_that_keeps_it_alive_is_read(tmp_path: Path) -> None:
    def frame(name: str, path: str) -> dict[str, object]:
        return {"name": name, "filename": path, "short_filename": path, "line": 3}

    def threads(innermost: str) -> list[dict[str, object]]:
        main = [frame("_shutdown", "/lib/threading.py"), frame(innermost, "/job/muster_program_end.py")]
        feeder = [frame("feed", "/lib/torch/pin_memory.py"), frame("run", "/lib/threading.py")]
        writer = [frame("save", "/code/train.py"), frame("run", "/lib/threading.py")]
        stacks = ((1, main), (2, feeder), (3, writer))
        return [{"os_thread_id": number, "frames": frames} for number, frames in stacks]

    tool = tmp_path / "py-spy"
    for innermost, function in (("ProgramEnd._on_shutdown", "save"), ("<module>", "_shutdown")):
        tool.write_text(f"#!/bin/sh\necho '{json.dumps(threads(innermost))}'\n")
        tool.chmod(0o700)
        frames = take_stacks(str(tool), {3: (1, "S")}, "/code")["3"]["frames"]
        assert frames[0][0] == function


def test_the_frames_of_the_recorder_are_left_out(tmp_path: Path) -> None:
    names = ("/lib/torch/distributed.py", RECORDER, "/code/train.py")
    frames = [{"name": "call", "filename": name, "short_filename": name, "line": 3} for name in names]
    tool = tmp_path / "py-spy"
    tool.write_text(f"#!/bin/sh\necho '{json.dumps([{'os_thread_id': 1, 'frames': frames}])}'\n")
    tool.chmod(0o700)
    taken = take_stacks(str(tool), {3: (1, "S")}, "/code")["3"]["frames"]
    assert [frame[1] for frame in taken] == [names[0], names[2]]


def test_a_line_outside_of_any_function_shows_its_text(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("import queue\n\nqueue.Queue().get()  # " + 99 * "x")
    os.mkfifo(code / "pipe.py")
    paths = (str(code / "train.py"), "train.py", str(code / "pipe.py"), "/lib/other.py")
    frames = [{"name": "<module>", "filename": path, "short_filename": "", "line": 3} for path in paths]
    tool = tmp_path / "py-spy"
    tool.write_text(f"#!/bin/sh\necho '{json.dumps([{'os_thread_id': 1, 'frames': frames}])}'\n")
    tool.chmod(0o700)
    taken = take_stacks(str(tool), {3: (1, "S")}, str(code))["3"]["frames"]
    text = f"`queue.Queue().get()  # {37 * 'x'}`"
    assert [frame[0] for frame in taken] == [text, text, "<module>", "<module>"]
