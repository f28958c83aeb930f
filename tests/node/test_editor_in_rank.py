"""An editor in a rank: debugpy on the rank's own socket, and the rank as it was when the editor has left."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import muster.deploy.agent.job
from muster.deploy.debug.editor import own_debugpy
from tests.dap import Editor
from tests.interpreters import interpreter
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow  # several processes a test

FOLDER = Path(next(iter(muster.deploy.agent.job.__path__)), "in_rank")
HERE = "/home/me/project"
# Works until the file `go` is there, then says what it has come to, and how Python is.
PROGRAM = """
import multiprocessing, os, sys, threading, time
def work(batch):
    factor = 0.5
    time.sleep(0.01)
    return batch * factor
total = 0.0
print("ready", flush=True)
def train():
    global total
    step = 0
    while not os.path.exists("go"):
        step += 1
        work(2.0)
    if os.path.exists("fork"):
        child = multiprocessing.get_context("fork").Process(target=work, args=(1.0,))
        child.start()
        child.join()
    for batch in range(5):
        total += work(batch)
train()
traced = sys.gettrace(), sys.breakpointhook is sys.__breakpointhook__, len(threading.enumerate())
print(total, traced, os.environ.get("PYDEVD_DISABLE_FILE_VALIDATION"), flush=True)
"""
TRACED = "another debugger is attached to this rank"
LINE = 6  # of `return batch * factor`
UNTOUCHED = "5.0 (None, True, 1) None\n"


@dataclass
class Rank:
    """A rank that runs."""

    process: subprocess.Popen[str]
    folder: Path
    brought: Path

    @property
    def code(self) -> str:
        return str(self.folder / "code")

    def connect(self) -> tuple[socket.socket, dict[str, Any]]:
        """Ask the rank's console for its debugger, as an agent does."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(PATIENCE)
        connection.connect(str(self.folder / "private" / "console-1"))
        connection.sendall(json.dumps({"do": "dap", "folder": str(self.brought)}).encode() + b"\n")
        with connection.makefile("rb") as stream:
            return connection, json.loads(stream.readline())

    def editor(self) -> Editor:
        """An editor that stops at the line; the rank may still end an earlier session."""

        def connected() -> list[socket.socket]:
            connection, answer = self.connect()
            if answer == {"ready": True}:
                return [connection]
            assert answer == {"error": TRACED}
            connection.close()
            return []

        editor = Editor(wait_until(connected, "the end of the earlier session")[0])
        editor.attach(HERE, self.code, LINE)
        return editor

    def end(self) -> str:
        (self.folder / "code" / "go").touch()
        return self.process.communicate(timeout=PATIENCE)[0]


@contextlib.contextmanager
def running(folder: Path, python: str = sys.executable, program: str = PROGRAM) -> Iterator[Rank]:
    for part in ("code", "private"):
        (folder / part).mkdir(parents=True)
    (folder / "code" / "train.py").write_text(program)
    env = {**os.environ, "RANK": "1", "MUSTER_AGENT": str(folder / "private"), "MUSTER_RECORD": "1"}
    env["PYTHONPATH"] = str(FOLDER)
    with subprocess.Popen(
        [python, "-W", "error", "train.py"],
        cwd=folder / "code",
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield Rank(process, folder, folder / "brought")
        finally:
            process.kill()


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    with running(tmp_path) as started:
        yield started


def unpack(folder: Path) -> None:
    packed = own_debugpy()
    assert packed
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        archive.extractall(folder)


@pytest.mark.parametrize("version", ["3.9", "3.12", "3.13"])
def test_a_rank_of_another_python_uses_the_debugpy_that_was_brought(tmp_path: Path, version: str) -> None:
    if not (python := interpreter(version)):
        pytest.skip(f"no Python {version} here")
    with running(tmp_path, python) as rank:
        assert rank.connect()[1]["missing"]
        unpack(rank.brought)
        editor = rank.editor()
        top, caller, *_ = editor.stopped()
        assert (top["name"], top["line"], caller["name"]) == ("work", LINE, "train")
        editor.stop_at(HERE)
        editor.resume()
        editor.ask("disconnect")
        editor.close()
        wait_until(lambda: rank.connect()[1] == {"ready": True}, "the end of the session")
        assert rank.end() == UNTOUCHED


def test_an_editor_stops_a_rank_reads_it_lets_it_go_and_leaves_it_as_it_was(rank: Rank) -> None:
    for _ in range(2):  # it may attach again
        editor = rank.editor()
        top, caller, *_ = editor.stopped()
        assert (top["source"]["path"], caller["name"]) == (f"{HERE}/train.py", "train")
        assert editor.variables(top) == {"batch": "2.0", "factor": "0.5"}
        assert editor.evaluate("batch + factor", top) == "2.5"
        assert [thread["name"] for thread in editor.ask("threads")["threads"]] == ["MainThread"]
        editor.resume()
        assert editor.stopped()[0]["line"] == LINE
        editor.stop_at(HERE)
        editor.resume()
        editor.ask("disconnect")
        editor.close()
    wait_until(lambda: rank.connect()[1] == {"ready": True}, "the end of the session")
    assert rank.end() == UNTOUCHED


def test_a_rank_at_a_breakpoint_continues_when_the_connection_is_lost(rank: Rank) -> None:
    editor = rank.editor()
    editor.stopped()
    editor.close()
    wait_until(lambda: rank.connect()[1] == {"ready": True}, "the end of the session")
    assert rank.end() == UNTOUCHED


def test_a_second_editor_is_refused_and_so_is_pdb_meanwhile(rank: Rank) -> None:
    editor = rank.editor()
    editor.stopped()
    assert rank.connect()[1] == {"error": TRACED}
    with socket.socket(socket.AF_UNIX) as pdb, pdb.makefile("rwb") as stream:
        pdb.connect(str(rank.folder / "private" / "console-1"))
        stream.write(json.dumps({"do": "debug", "hold": True, "code": rank.code}).encode() + b"\n")
        stream.flush()
        assert json.loads(stream.readline()) == {"text": f"{TRACED}\n"}
        assert stream.readline() == b""
    editor.close()


def test_a_rank_that_ends_at_a_breakpoint_closes_the_connection(rank: Rank) -> None:
    editor = rank.editor()
    editor.stopped()
    rank.process.kill()
    assert "terminated" not in editor.rest()  # it had no time to say so


def test_a_rank_that_ends_says_so_to_the_editor(rank: Rank) -> None:
    editor = rank.editor()
    editor.stopped()
    editor.stop_at(HERE)
    editor.resume()
    assert rank.end().startswith("5.0 ")
    assert editor.rest()[-1] == "terminated"


def test_a_child_that_the_program_forks_does_not_stop_at_a_breakpoint(rank: Rank) -> None:
    (rank.folder / "code" / "fork").touch()
    editor = rank.editor()
    editor.stopped()
    editor.stop_at(HERE)
    editor.resume()
    editor.ask("threads")  # so the breakpoints are removed
    editor.stop_at(HERE, LINE)
    (rank.folder / "code" / "go").touch()
    for _ in range(5):  # one of them may be before the fork
        assert editor.stopped()[1]["name"] == "train"
        editor.resume()
    editor.close()
    assert rank.process.communicate(timeout=PATIENCE)[0].startswith("5.0 ")


def test_a_program_that_has_called_debugpy_itself_keeps_its_debugger(tmp_path: Path) -> None:
    begin = "import debugpy; debugpy.listen(0, in_process_debug_adapter=True)\n"
    with running(tmp_path, program=begin + PROGRAM) as rank:
        assert rank.connect()[1] == {"error": TRACED}
