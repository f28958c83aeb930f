"""The console in a rank: what it answers while the program goes on, and that the program is as it was."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core import agent
from muster.deploy.core.job.planning import rank_programs
from muster.deploy.features import why
from muster.deploy.features.eval import on_host as consoles
from muster.deploy.features.eval.on_host import NOT_AN_ANSWER, SILENT, Consoles
from muster.deploy.features.why.on_host.records import read_stack
from tests.interpreters import interpreter
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow  # several processes a test

PROGRAMS = rank_programs(Path(agent.__file__).parent) | rank_programs(Path(why.__file__).parent)
JOB = {"job": "j", "host": "node1"}
PYTHONS = ["3.9", "{}.{}".format(*sys.version_info), "3.12", "3.13"]
# Works until the file `go` is there, then says what it has come to.
PROGRAM = """
import os, random, sys, time
random.seed(7)
scale = 2
total, step = 0.0, 0
class Model:
    training = True
model = Model()
def work(batch):
    factor = 0.5
    time.sleep(0.01)
    return batch * scale * factor
def train():
    global total, step
    print("ready", flush=True)
    while not os.path.exists("go"):
        step += 1
        work(1.0)
    for _ in range(5):
        total += work(random.random())
train()
print(total, scale, model.training, sys.gettrace(), flush=True)
"""


@dataclass
class Running:
    """A rank that runs, and the agent's part that asks it."""

    process: subprocess.Popen[str]
    agent: Consoles
    home: Path

    def eval(self, expression: str, seconds: float = 100, rank: int | None = None) -> dict[str, Any]:
        asked = {**JOB, "expression": expression, "seconds": seconds, "only": rank}
        answer = self.agent.do_console_eval(asked, b"")
        assert answer["recorded"]
        return dict(answer["ranks"])

    def end(self) -> str:
        (self.home / ".muster/jobs/j/code/go").touch()
        return self.process.communicate(timeout=PATIENCE)[0]


@contextmanager
def running(home: Path, program: str = PROGRAM, python: str = sys.executable) -> Iterator[Running]:
    job, private = home / ".muster" / "jobs" / "j", home / "private"
    for folder in (job / "code", job / "bin" / "in_rank", private):
        folder.mkdir(parents=True)
    private.chmod(0o700)
    (job / "agent.node1").write_text(str(private))
    for name, text in PROGRAMS.items():
        (job / "bin" / "in_rank" / name).write_text(text)
    (job / "code" / "train.py").write_text(program)
    env = {**os.environ, "RANK": "1", "MUSTER_AGENT": str(private), "MUSTER_START": "muster_start"}
    env["PYTHONPATH"] = str(job / "bin" / "in_rank")
    agent = Consoles(home / ".muster")
    with subprocess.Popen(
        [python, "-W", "error", "train.py"], cwd=job / "code", env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield Running(process, agent, home)
        finally:
            process.kill()


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path) as started:
        yield started


def undisturbed(tmp_path: Path) -> str:
    with running(tmp_path / "other") as started:
        return started.end()


@pytest.mark.parametrize("version", dict.fromkeys(PYTHONS))
def test_an_expression_has_the_names_of_the_function_and_its_callers(tmp_path: Path, version: str) -> None:
    if not (found := interpreter(version)):
        pytest.skip(f"no Python {version} here")
    with running(tmp_path, python=found) as rank:
        value = rank.eval("model.training, scale, [scale * n for n in (1, 2)]")["1"]["value"]
        assert value == "(True, 2, [2, 4])"

        def inside() -> bool:
            return bool(rank.eval("factor + scale")["1"].get("value") == "2.5")

        wait_until(inside, "the program in its function")
        at = rank.eval("step")["1"]["at"]
        assert at.startswith(("work (train.py:", "train (train.py:"))
        before = int(rank.eval("step")["1"]["value"])
        wait_until(lambda: int(rank.eval("step")["1"]["value"]) > before, "the program to go on")


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("lss", "NameError: name 'lss' is not defined"),
        ("1 +", "SyntaxError: "),
        ("scale = 3", "SyntaxError: "),
        ("sys.exit(3)", "SystemExit: 3"),
        ("1 / 0", "ZeroDivisionError: "),
        ("[0 for _ in iter(int, 1)]", "it took longer than 0.5 s and was interrupted"),
    ],
)
def test_an_expression_may_fail(rank: Running, tmp_path: Path, expression: str, error: str) -> None:
    seconds = 0.5 if "0.5 s" in error else 60.0
    assert rank.eval(expression, seconds)["1"]["error"].startswith(error)
    at_it = "sum(one.name == 'muster-eval' for one in __import__('threading').enumerate())"
    wait_until(lambda: rank.eval(at_it)["1"]["value"] == "1", "the thread of the failed expression to end")
    assert rank.end() == undisturbed(tmp_path)


USES_GPU = """__import__("sys").modules.update(
    {"torch.cuda": __import__("types").SimpleNamespace(is_initialized=lambda: True)})"""
IN_C = "it took longer than 2 s, and is in a function of C that cannot be interrupted"
WAITS = "; the value of a tensor on a GPU waits for the GPU's work so far, its shape does not"


@pytest.mark.parametrize(("before", "note"), [("None", ""), (" ".join(USES_GPU.split()), WAITS)])
def test_an_uninterruptible_c_function_is_told(rank: Running, tmp_path: Path, before: str, note: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert rank.eval(before)["1"]["value"] == "None"
    assert rank.eval(f"open({str(tmp_path / 'fifo')!r}).read()", 2)["1"]["error"] == f"{IN_C}{note}"
    (tmp_path / "fifo").write_text("")  # lets it end
    assert rank.end() == undisturbed(tmp_path)


def test_a_long_value_is_cut_on_its_way(rank: Running) -> None:
    assert len(rank.eval("'x' * 10**7")["1"]["value"]) == consoles.MOST_TEXT
    assert len(rank.eval("list(range(10**6))")["1"]["value"]) < 2000
    assert rank.eval("'\\x1b[2J' + chr(0xdc80)")["1"]["value"] == "'\\x1b[2J\\udc80'"


def test_the_stack_can_be_read_without_py_spy(rank: Running) -> None:
    code = str(rank.home / ".muster/jobs/j/code")
    frames = read_stack(str(rank.home / "private" / "console-1"), code)
    assert frames[-1][:2] + frames[-1][3:] == ["<module>", "train.py", True]
    assert frames[-2][:2] + frames[-2][3:] == ["train", "train.py", True]
    assert all(isinstance(line, int) for _, _, line, _ in frames)
    assert read_stack(str(rank.home / "private" / "console-2"), code) == []


def test_only_the_rank_that_is_asked_answers(rank: Running) -> None:
    assert rank.eval("step", rank=0) == {}
    assert [*rank.eval("step", rank=1)] == ["1"]


def test_a_rank_that_is_stopped_or_gone_holds_nobody(rank: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consoles, "GRACE_SECONDS", 0.2)
    rank.process.send_signal(signal.SIGSTOP)
    os.waitpid(rank.process.pid, os.WUNTRACED)  # until all its threads have stopped
    assert rank.eval("step", 0.2) == {"1": {"error": SILENT}}
    rank.process.kill()
    rank.process.wait()
    assert rank.eval("step") == {}


def test_a_socket_that_says_something_else_is_no_answer(rank: Running) -> None:
    with subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); "
            "print(flush=True); "
            "[(c.recv(9999), c.sendall(b'[' * 99999 + b'\\n')) for c in iter(lambda: s.accept()[0], None)]",
            str(rank.home / "private" / "console-7"),
        ],
        stdout=subprocess.PIPE,
    ) as liar:
        assert liar.stdout
        liar.stdout.readline()
        said = rank.eval("step")["7"], read_stack(str(rank.home / "private" / "console-7"), "")
        liar.kill()
    assert said == ({"error": NOT_AN_ANSWER}, [])


def test_the_console_is_for_this_user_only(rank: Running) -> None:
    socket = rank.home / "private" / "console-1"
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    stranger = "import muster_console; muster_console._user_of = lambda connection: 12345\n"
    with running(rank.home / "other", stranger + PROGRAM) as closed:
        assert closed.eval("step")["1"].keys() == {"error"}


def answer_to(user: int, path: str) -> str:
    """The answer of a console to a child of this process with another user, or the name of its error."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            os.setuid(user)
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
                client.sendall(b'{"do": "eval", "expression": "step", "code": "", "seconds": 9}\n')
                os.write(writer, client.recv(1000))
        except OSError as error:
            os.write(writer, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as answer:
        return answer.read()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_process_of_another_user_reaches_no_console(rank: Running) -> None:
    private = rank.home / "private"
    folder = os.open(private, os.O_PATH)  # so that only the mode of this folder counts
    path = f"/proc/self/fd/{folder}/console-1"
    assert '"value"' in answer_to(os.geteuid(), path)
    assert answer_to(65534, path) == "PermissionError"
    private.chmod(0o755)
    assert answer_to(65534, path) == "PermissionError"  # of the socket itself
    (private / "console-1").chmod(0o666)
    assert answer_to(65534, path) in {"", "ConnectionResetError", "BrokenPipeError"}
    os.close(folder)


def test_no_further_thread_is_seen_and_a_later_python_has_the_console(tmp_path: Path) -> None:
    again = "import os, sys, threading\nassert threading.active_count() == 1\n"
    again += "if 'AGAIN' not in os.environ:\n"
    again += "    path = os.path.dirname(os.environ['MUSTER_AGENT']) + '/.muster/jobs/j/bin/in_rank'\n"
    again += "    os.environ.update(AGAIN='1', MUSTER_START='muster_start', PYTHONPATH=path)\n"
    again += "    os.execv(sys.executable, [sys.executable, 'train.py'])\n"
    with running(tmp_path, again + PROGRAM) as rank:
        assert rank.eval("scale")["1"]["value"] == "2"


def test_a_job_without_a_record_has_no_console(tmp_path: Path) -> None:
    agent = Consoles(tmp_path)
    asked = {**JOB, "expression": "1", "seconds": 1, "only": None}
    assert agent.do_console_eval(asked, b"") == {"recorded": False, "ranks": {}}


def test_a_fork_is_not_warned_of_and_its_child_is_no_rank(tmp_path: Path) -> None:
    child = (
        "import os, threading\n"
        "for _ in range(5):\n"
        "    if os.fork() == 0:\n"
        "        os._exit(threading.active_count() != 1)\n"
        "    assert os.wait()[1] == 0\n"
    )
    newest = next(found for version in reversed(PYTHONS) if (found := interpreter(version)))
    with running(tmp_path, child + PROGRAM, newest) as forked:  # with -W error
        assert "value" in forked.eval("step")["1"]
        assert forked.end()


def test_a_program_that_closes_all_descriptors_forks_as_ever(tmp_path: Path) -> None:
    closes = (
        "import os, signal, time, warnings\n"
        "warnings.simplefilter('ignore')\n"  # of the thread, which stays
        "worker = os.fork() or time.sleep(600)\n"  # it holds the other ends of the descriptors
        "time.sleep(0.1)\n"  # the thread waits by then; if not, the test sees less
        "os.closerange(3, 100)\n"
        "if os.fork() == 0:\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "os.kill(worker, signal.SIGKILL)\n"
    )
    with running(tmp_path, closes + PROGRAM) as rank:
        assert rank.end()
