"""A rank whose program is over: what is reported, what keeps it alive, and what stays as it is.

The test is the agent. The seconds that a rank gets are shortened in the text of the file.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core import agent
from muster.deploy.core.job.planning import rank_programs
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow  # several processes a test

SHORT = (("GRACE_SECONDS = 60.0", "GRACE_SECONDS = 0.5"), ("QUIET_SECONDS = 10.0", "QUIET_SECONDS = 0.2"))
STUCK = """
import sys, threading, time
def save(): time.sleep(600)
threading.Thread(target=save, name="writer").start()
"""
LAST = b"over\n"
WRITER = "thread 'writer' in save (program.py:3)"


@dataclass
class Ended:
    status: int
    said: str
    reports: list[dict[str, Any]]


class Rank:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "in_rank").mkdir()
        self.write_programs(SHORT)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "agent"))
        self._listener.listen()

    def write_programs(self, shorter: Iterable[tuple[str, str]] = ()) -> None:
        for name, text in rank_programs(Path(agent.__file__).parent).items():
            shortened = functools.reduce(lambda text, seconds: text.replace(*seconds), shorter, text)
            (self.folder / "in_rank" / name).write_text(shortened)

    def run(self, program: str) -> Ended:
        """Run a program to its end. It finds a file `reported` once its first report was read."""
        (self.folder / "program.py").write_text(program)
        path = str(self.folder / "in_rank")
        world = {"RANK": "1", "WORLD_SIZE": "2", "MUSTER_AGENT": str(self.folder), "PYTHONPATH": path}
        with (self.folder / "said").open("w") as said, ThreadPoolExecutor(1) as pool:
            reports = pool.submit(self._hear)
            try:
                done = subprocess.run(
                    [sys.executable, "program.py"],
                    cwd=self.folder,
                    env={**os.environ, **world},
                    stdout=said,  # no pipe: a child that is left holds it open
                    stderr=subprocess.STDOUT,
                    timeout=PATIENCE,
                    check=False,
                )
            finally:
                with socket.socket(socket.AF_UNIX) as last:
                    last.connect(str(self.folder / "agent"))
                    last.sendall(LAST)
        return Ended(done.returncode, (self.folder / "said").read_text(), reports.result())

    def _hear(self) -> list[dict[str, Any]]:
        reports: list[dict[str, Any]] = []
        while True:
            connection, _ = self._listener.accept()
            with connection, connection.makefile("rb") as stream:
                line = stream.readline()  # empty: a check of this host has asked whether an agent lives
            if line == LAST:
                return reports
            if line:
                reports.append(json.loads(line))
                (self.folder / "reported").touch()


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


ALIVE = {
    "thread": (STUCK + "raise ValueError('boom')", WRITER),
    "executor": (
        "import time\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "def save(): time.sleep(600)\n"
        "ThreadPoolExecutor(1, 'pool').submit(save)\nraise ValueError('boom')",
        "thread 'pool_0' in save (program.py:3)",
    ),
    "process": (
        "import multiprocessing, time\nmultiprocessing.set_start_method('fork')\n"
        "multiprocessing.Process(target=time.sleep, args=(2,), name='loader').start()\n"
        "raise ValueError('boom')",
        "process 'loader' (PID ",
    ),
    "exit function": (
        "import atexit, time\ndef bye(): time.sleep(600)\natexit.register(bye)\nraise ValueError('boom')",
        "its main thread in bye (program.py:2)",
    ),
}


@pytest.mark.parametrize(("program", "alive"), ALIVE.values(), ids=ALIVE.keys())
def test_an_exception_is_reported_at_once_and_ends_the_rank(rank: Rank, program: str, alive: str) -> None:
    ended = rank.run(program)
    assert ended.status == 1
    first, last = ended.reports
    assert (first["hello"], first["rank"], first["ended"], last["ended"]) == ("over", 1, False, True)
    assert first["error"][-1] == last["error"][-1] == "ValueError: boom"
    assert alive in last["alive"][0]
    assert first["time"] == last["time"]
    assert "ValueError: boom" in ended.said


def test_a_thread_that_ends_in_time_is_not_broken_off(rank: Rank) -> None:
    rank.write_programs()  # with the seconds that users have
    work = "import threading, time\ndef save(): time.sleep(0.1); print('saved')\n"
    ended = rank.run(work + "threading.Thread(target=save).start()\nraise ValueError('boom')")
    assert (ended.status, len(ended.reports)) == (1, 1)
    assert "saved" in ended.said


OWN = "def own(kind, error, trace): print('own hook', error, flush=True)\n"
HOOKS = {
    "own": (OWN + "sys.excepthook = own\n", 1),
    "chained": (
        OWN + "before = sys.excepthook\nsys.excepthook = lambda *found: (own(*found), before(*found))\n",
        1,
    ),
    "replaced in a thread later": (
        OWN + "other = threading.Thread(target=setattr, args=(sys, 'excepthook', own))\n"
        "other.start(); other.join()\n",
        1,
    ),
    "one that raises": (
        OWN + "def bad(*found): own(*found); raise KeyError('in the hook')\nsys.excepthook = bad\n",
        1,
    ),
    "one that ends the process": (
        OWN + "import os\nsys.excepthook = lambda *found: (own(*found), os._exit(7))\n",
        7,
    ),
}


@pytest.mark.parametrize(("hook", "status"), HOOKS.values(), ids=HOOKS.keys())
def test_the_programs_own_hook_is_called_too(rank: Rank, hook: str, status: int) -> None:
    ended = rank.run(STUCK + hook + "raise ValueError('boom')")
    assert ended.status == status
    assert ended.said.count("own hook boom") == 1
    assert {report["error"][-1] for report in ended.reports} == (
        {"ValueError: boom"} if status == 1 else set()
    )


@pytest.mark.soak  # it imports torch
def test_torchruns_record_writes_its_file_and_the_exception_is_reported(rank: Rank) -> None:
    errors = rank.folder / "errors.json"
    program = (
        f"import os\nos.environ['TORCHELASTIC_ERROR_FILE'] = {str(errors)!r}\n"
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\ndef main(): raise ValueError('boom')\n"
    )
    ended = rank.run(program + STUCK + "main()")
    assert (ended.status, ended.reports[0]["error"][-1]) == (1, "ValueError: boom")
    assert "boom" in errors.read_text()


def test_a_program_that_is_interrupted_is_reported_as_such(rank: Rank) -> None:
    # A shell in the background has its programs ignore SIGINT, and so Python has no handler for it.
    handled = "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    ended = rank.run(STUCK + handled + "os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(600)")
    assert ended.status == 130
    assert ended.reports[-1]["error"][-1] == "KeyboardInterrupt"


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise SystemExit('no')"])
def test_a_program_that_just_ends_is_reported_and_its_threads_end(rank: Rank, end: str) -> None:
    """Python keeps the status of SystemExit to itself until the process ends."""
    until = "\n  while not os.path.exists('reported'): time.sleep(0.01)"
    ended = rank.run("import os" + STUCK.replace(" time.sleep(600)", until) + end)
    assert ended.status == (0 if not end else 3 if "3" in end else 1)
    assert [(report["error"], report["ends_in"], report["alive"]) for report in ended.reports] == [
        ([], 0.0, [WRITER.replace("3", "4")])
    ]


UNREPORTED = {
    "a thread": ("t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()", 0, "ZeroDivisionError"),
    "sys.exit in a thread": ("t = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join()", 0, ""),
    "an exit function": ("atexit.register(lambda: 1 / 0)", 0, "ZeroDivisionError"),
    "__del__": ("class A:\n  def __del__(self): 1 / 0\nA()", 0, "ZeroDivisionError"),
    "os._exit": ("os._exit(9)", 9, ""),
    "a child": (
        "multiprocessing.set_start_method('fork')\np = multiprocessing.Process(target=lambda: 1 / 0)\n"
        "p.start(); p.join(); assert p.exitcode == 1",
        0,
        "ZeroDivisionError",
    ),
    "an exception that was shown": (
        "import code\nterminal = code.InteractiveInterpreter()\nterminal.runsource('1/0')",
        0,
        "ZeroDivisionError",
    ),
}


@pytest.mark.parametrize(("program", "status", "said"), UNREPORTED.values(), ids=UNREPORTED.keys())
def test_what_goes_on_is_in_its_output_alone(rank: Rank, program: str, status: int, said: str) -> None:
    ended = rank.run("import atexit, multiprocessing, os, sys, threading\n" + program)
    assert (ended.status, ended.reports) == (status, [])
    assert said in ended.said


@pytest.mark.soak  # it imports torch
def test_an_exception_of_a_data_loaders_worker_is_the_ranks(rank: Rank) -> None:
    program = (
        "import torch.utils.data as data\n"
        "class Bad(data.Dataset):\n"
        "  def __len__(self): return 4\n"
        "  def __getitem__(self, at): raise ValueError('bad sample')\n"
        "list(data.DataLoader(Bad(), num_workers=1))"
    )
    ended = rank.run(program)
    assert ended.status == 1
    assert "ValueError: bad sample" in "\n".join(ended.reports[0]["error"])
