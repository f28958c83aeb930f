"""The end of ranks on a host: who gets SIGTERM, who gets time, and what is reported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.deploy.core.agent import ending as module
from muster.deploy.core.agent.ending import Ending
from muster.deploy.core.agent.ranks import Ranks
from tests.processes import trees
from tests.waiting import wait_until

# A stand-in for the wrapper of a rank, which passes SIGTERM on to its program.
WRAPPER = """
import signal, subprocess, sys
program = subprocess.Popen(sys.argv[1:])
signal.signal(signal.SIGTERM, lambda *a: program.terminate())
program.wait()
"""
# It has saved when the file is there.
SAVES = """
import os, signal, sys, time
got = []
signal.signal(signal.SIGTERM, lambda *a: got.append(1))
print("ready", flush=True)
while not got or not os.path.exists({until!r}): time.sleep(0.01)
print("saved", flush=True)
"""
# The same without a handler.
WAITS = SAVES.replace(
    "signal.signal(signal.SIGTERM, lambda *a: got.append(1))",
    """
import threading
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})
threading.Thread(target=lambda: got.append(signal.sigwait({{signal.SIGTERM}})), daemon=True).start()
""",
)
# Its handler leaves the save to another process.
HANDS_ON = """
import os, signal, subprocess, sys, time
def save(*args):
    wait = "until [ -e {until} ]; do sleep 0.05; done; echo saved"
    print(subprocess.Popen(["sh", "-c", wait], start_new_session=True).pid, flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True: time.sleep(1)
"""
IGNORES = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
# Its child, without a handler, is there before SIGTERM; a command that saves comes after it.
WITH_CHILDREN = """
import signal, subprocess, sys, time
got = []
signal.signal(signal.SIGTERM, lambda *a: got.append(1))
worker = subprocess.Popen(["sleep", "60"])
print("ready", flush=True)
while not got: time.sleep(0.01)
copied = subprocess.run(["sleep", "0.4"]).returncode
print("worker", worker.poll(), "copied", copied, flush=True)
worker.kill()
"""


class Started:
    """A rank, whose program prints `ready`."""

    def __init__(self, *argv: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRAPPER, *argv], stdout=subprocess.PIPE, text=True, env=rank_environment()
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout
        assert self.output.readline() == "ready\n"
        self.ranks = Ranks()
        self.ranks.started(0, self.process.pid)

    def ending(self, grace: float) -> Ending:
        return Ending(lambda: trees([self.process.pid]), self.ranks, grace)


def rank_environment() -> dict[str, str]:
    return {**os.environ, "RANK": "0"}


@pytest.fixture(autouse=True)
def soon_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLAIN_SECONDS", 0.2)


@pytest.fixture
def begin() -> Iterator[Callable[..., Started]]:
    started: list[Started] = []

    def start(*argv: str) -> Started:
        started.append(Started(*argv))
        return started[-1]

    yield start
    for rank in started:
        for pid in trees([rank.process.pid]):
            os.kill(pid, signal.SIGKILL)
        rank.process.wait()
        rank.output.close()


@pytest.mark.parametrize("program", [SAVES, WAITS], ids=["handler", "sigwait"])
def test_a_sigterm_handler_may_save(begin: Callable[..., Started], tmp_path: Path, program: str) -> None:
    rank = begin(sys.executable, "-c", program.format(until=f"{tmp_path}/go"))
    ending = rank.ending(grace=60)
    wait_until(lambda: ending.go_on(0.1) or bool(ending.saving), "the handler is seen")
    assert not ending.go_on(1.0)
    assert ending.saving == [0]
    (tmp_path / "go").touch()
    assert ending.finish() == []
    assert (rank.output.read(), ending.ended) == ("saved\n", [])


def test_a_save_in_another_process_gets_the_time(begin: Callable[..., Started], tmp_path: Path) -> None:
    rank = begin(sys.executable, "-c", HANDS_ON.format(until=f"{tmp_path}/go"))
    adopted: list[int] = []
    ending = Ending(lambda: [*trees([rank.process.pid]), *trees(adopted)], rank.ranks, 60.0)
    assert not ending.go_on(0.0)
    adopted.append(int(rank.output.readline()))  # as an agent does
    assert not ending.go_on(1.0)
    assert ending.saving == [0]
    (tmp_path / "go").touch()
    assert ending.finish() == []
    assert (rank.output.read(), ending.ended) == ("saved\n", [])


def test_a_program_that_takes_longer_is_killed_and_named(begin: Callable[..., Started]) -> None:
    rank = begin(sys.executable, "-c", SAVES.format(until="/never"))
    (program,) = trees([rank.process.pid])[1:]
    ending = rank.ending(grace=600)
    assert not ending.go_on(0.3)
    ending.grace = 0.3  # a second Ctrl-C
    assert ending.finish() == []
    (ended,) = ending.ended
    assert (ended["rank"], ended["pid"], ended["program"], ended["seconds"] < 600) == (0, program, True, True)


@pytest.mark.parametrize(
    "program", [IGNORES, "print('ready', flush=True); import time; time.sleep(600)"], ids=["ignores", "plain"]
)
def test_a_program_without_a_handler_gets_no_grace(begin: Callable[..., Started], program: str) -> None:
    rank = begin(sys.executable, "-c", program)
    ending, began = rank.ending(grace=600), time.monotonic()
    assert ending.finish() == []
    assert time.monotonic() - began < 300
    assert ending.saving == []


def test_children_of_a_program_that_saves_are_left_to_it(begin: Callable[..., Started]) -> None:
    rank = begin(sys.executable, "-c", WITH_CHILDREN)
    assert rank.ending(grace=60).finish() == []
    assert rank.output.read() == "worker None copied 0\n"


def test_a_command_below_a_trap_gets_the_signal_too(begin: Callable[..., Started], tmp_path: Path) -> None:
    (tmp_path / "saves.py").write_text(SAVES.format(until="/"))
    script = f"trap 'echo trapped' TERM; {sys.executable} {tmp_path}/saves.py; true"
    rank = begin("bash", "-c", script)
    assert rank.ending(grace=60).finish() == []
    assert rank.output.read() == "saved\ntrapped\n"


@pytest.mark.parametrize("is_ended", [False, True])
def test_what_a_rank_left_behind_is_waited_for(tmp_path: Path, is_ended: bool) -> None:
    script = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo uploaded > {tmp_path}/uploaded"
    with subprocess.Popen(["sh", "-c", script], env=rank_environment(), start_new_session=True) as upload:
        environment = Path(f"/proc/{upload.pid}/environ")
        wait_until(environment.read_bytes, "the environment, which is empty while a program is loaded")
        ranks = Ranks()
        ranks.started(0, 1 << 22)  # it has ended
        ranks.ended(0, {"code": 0})
        ending = Ending(lambda: trees([upload.pid]), ranks, 60.0, patience=600.0)
        assert not ending.go_on(0.0)
        assert ("sh", 0) in [(frame["name"], frame["rank"]) for frame in ending.behind]
        if is_ended:
            ending.patience = 0.0  # Ctrl-C
        else:
            (tmp_path / "go").touch()
        ending.finish()
    assert (tmp_path / "uploaded").exists() != is_ended
    assert [frame["pid"] for frame in ending.ended][:1] == ([upload.pid] if is_ended else [])
