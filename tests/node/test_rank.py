"""The wrapper of a rank, run as it runs on a node, with the test as its agent."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.agent import cgroups, rank
from muster.deploy.core.agent import ranks as ranks_here
from muster.deploy.core.agent.ranks import Ranks, memory_limit
from muster.deploy.core.wire.clock import steady
from muster.deploy.core.wire.rank_logs import rank_stem
from muster.deploy.features.why.on_host import evidence
from muster.deploy.features.why.on_host.evidence import take_stacks
from tests.processes import is_alive, wait_until_gone
from tests.replaced import ReplacedPython
from tests.waiting import wait_until

MPIRUN = {
    f"OMPI_COMM_WORLD_{name}": "0" if "RANK" in name else "1"
    for name in ("RANK", "LOCAL_RANK", "SIZE", "LOCAL_SIZE")
}


class Agent:
    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self.job: dict[str, Any] = {"cwd": str(folder), "env": env, "folder": str(folder)}
        self.job["log"] = rank_stem(0, "node1", 0)
        (folder / "logs").mkdir()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "agent"))
        self._listener.listen()

    def start(
        self, *argv: str, python: str = sys.executable, program: str = rank.__file__
    ) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **MPIRUN, "MUSTER_AGENT": str(self.folder)}
        process = subprocess.Popen([python, "-IS", program, *argv], env=environment)
        hello = b""
        while not hello:  # a check of this host may ask whether an agent lives
            self.connection, _ = self._listener.accept()
            self.stream = self.connection.makefile("rwb")
            hello = self.stream.readline()
        self.hello = json.loads(hello)
        self.stream.write(json.dumps(self.job).encode() + b"\n")
        self.stream.flush()
        return process

    def frames(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    yield Agent(tmp_path, {"GREETING": "it's $HOME"})


def test_a_rank_says_who_it_is_what_it_prints_and_how_it_ends(agent: Agent) -> None:
    process = agent.start("-c", "import os,sys; print(os.environ['GREETING']); sys.exit('no')")
    assert (agent.hello["rank"], agent.hello["world_size"]) == (0, 1)
    *lines, end = agent.frames()
    assert sorted((line["stream"], line["text"]) for line in lines) == [
        ("err", "no\n"),
        ("out", "it's $HOME\n"),
    ]
    assert (end["event"], end["code"], end["tail"]) == ("rank-end", 1, ["no\n"])
    assert process.wait() == 1
    assert json.loads((agent.folder / "logs" / "rank-0000@node1.json").read_text())["code"] == 1


def test_output_is_kept_byte_for_byte(agent: Agent) -> None:
    content = b"a\r\nprogress 1\rprogress 2\rbroken \xff\xfe\x00 bytes\nno end"
    agent.start("-c", f"import sys; sys.stdout.buffer.write({content!r})")
    lines = [frame["text"] for frame in agent.frames() if frame["event"] == "output"]
    assert "".join(lines).encode(errors="surrogateescape") == content
    assert (agent.folder / "logs" / "rank-0000@node1.out").read_bytes() == content


def test_a_full_disk_keeps_no_line_from_the_driver_and_no_program_from_its_end(agent: Agent) -> None:
    log = agent.folder / "logs" / "rank-0000@node1.out"
    log.symlink_to("/dev/full")
    process = agent.start("-c", "print('x' * 99 + '\\n', end='') or [print('y' * 99) for _ in range(3000)]")
    frames = agent.frames()
    (end,) = [frame for frame in frames if frame["event"] == "rank-end"]
    assert sum(len(frame["text"]) for frame in frames if frame["event"] == "output") == 3001 * 100
    assert [(frame["path"], frame["errno"]) for frame in frames if frame["event"] == "log-ended"] == [
        (str(log), errno.ENOSPC)
    ]
    assert (end["event"], end["code"], process.wait(50)) == ("rank-end", 0, 0)


def patient_for(seconds: float, folder: Path) -> str:
    """A copy of the wrapper that gives up a disk after so many seconds."""
    text = Path(str(rank.__file__)).read_text()
    text = text.replace("SILENT_DISK_SECONDS = 5.0", f"SILENT_DISK_SECONDS = {seconds}")
    (folder / "rank.py").write_text(text)
    return str(folder / "rank.py")


@pytest.mark.parametrize(("lines", "code"), [(70_000, 0), (1, 3)])
def test_a_silent_disk_keeps_no_line_from_the_driver(agent: Agent, lines: int, code: int) -> None:
    log = agent.folder / "logs" / "rank-0000@node1.out"
    os.mkfifo(log)  # whoever opens it for writing waits, as for such a disk
    deed = f"import sys; [print('y' * 99) for _ in range({lines})]; sys.exit({code})"
    process = agent.start("-c", deed, program=patient_for(0.5, agent.folder))
    frames = agent.frames()
    assert sum(len(frame["text"]) for frame in frames if frame["event"] == "output") == lines * 100
    ended = [(frame["path"], frame["errno"]) for frame in frames if frame["event"] == "log-ended"]
    assert ended == [(str(log), None)]
    (end,) = [frame for frame in frames if frame["event"] == "rank-end"]
    assert (end["code"], end["tail"][-1], process.wait(50)) == (code, "y" * 99 + "\n", code)
    if lines == 1:  # else it is more than memory holds, and the file has ended before
        assert [frame["event"] for frame in frames] == ["output", "rank-end", "log-ended"]


def test_a_disk_that_answers_again_has_every_line(agent: Agent) -> None:
    log = agent.folder / "logs" / "rank-0000@node1.out"
    os.mkfifo(log)
    process = agent.start("-c", "print('first\\nsecond')", program=patient_for(60.0, agent.folder))
    assert log.read_bytes() == b"first\nsecond\n"
    assert agent.frames()[-1]["event"] == "rank-end"
    assert process.wait(50) == 0


def test_the_time_of_an_end_is_of_a_clock_that_nobody_sets(agent: Agent) -> None:
    before = steady()
    agent.start("-c", "pass")
    assert before <= agent.frames()[-1]["time"] <= steady()


CLOSES_LATE = """
import os, time
class Connection:
    def __del__(self, clock=time.clock_gettime, boottime=time.CLOCK_BOOTTIME, write=os.write):
        write(1, repr(clock(boottime)).encode())
open_until_python_takes_its_modules_apart = Connection()
raise ValueError("boom")
"""


def test_a_rank_has_failed_before_its_connections_close(agent: Agent) -> None:
    agent.start("-c", CLOSES_LATE)
    *frames, end = agent.frames()
    (closed,) = [frame["text"] for frame in frames if frame.get("stream") == "out"]
    assert (end["code"], end["tail"][-1]) == (1, "ValueError: boom\n")
    assert end["time"] < float(closed)


def test_a_time_that_a_program_made_up_is_not_told(agent: Agent) -> None:
    write = "open(f'{os.environ[\"MUSTER_AGENT\"]}/over-{os.getpid()}', 'w').write('nan')"
    before = steady()
    agent.start("-c", f"import os; {write}; os._exit(3)")
    assert before <= agent.frames()[-1]["time"] <= steady()


@pytest.mark.parametrize("code", [0, 3])
def test_the_end_of_a_rank_is_told_though_its_folder_is_gone(agent: Agent, code: int) -> None:
    remove = f"import shutil,sys; shutil.rmtree({str(agent.folder / 'logs')!r}); sys.exit({code})"
    process = agent.start("-c", remove)
    assert [frame["code"] for frame in agent.frames()] == [code]
    assert process.wait(50) == code


WAITS = """
import os, sys, time
print("ready", flush=True)
while not os.path.exists("go"): time.sleep(0.01)
"""
ENDS = {
    "well": ("", 0, ""),
    "by an exception": ("raise ValueError('boom')", 1, "ValueError: boom\n"),
    "by a signal": ("import posix; posix.kill(posix.getpid(), 15)", -15, ""),
    "with much to say": ("print('x' * 300000); sys.exit('no')", 1, "no\n"),
}


@pytest.mark.parametrize(("deed", "code", "last"), ENDS.values(), ids=ENDS.keys())
def test_the_end_is_told_though_python_was_replaced_in_mid_run(
    agent: Agent, tmp_path: Path, deed: str, code: int, last: str
) -> None:
    """As by an upgrade of the interpreter: nothing of its library can be loaded after that."""
    python = ReplacedPython(tmp_path / "python")
    process = agent.start("-c", WAITS + deed, python=str(python.executable))
    agent.stream.readline()
    python.replace()
    Path(agent.job["cwd"], "go").touch()
    end = agent.frames()[-1]
    assert end["event"] == "rank-end"
    assert (end["code"], end["tail"][-1:]) == (code, [last or "ready\n"])
    assert process.wait(50) == (code if code >= 0 else 128 - code)
    assert json.loads((agent.folder / "logs" / "rank-0000@node1.json").read_text())["code"] == code


@pytest.mark.parametrize(
    ("text", "whole", "rest"),
    [
        (b"a\nb\nc", b"a\nb\n", b"c"),
        (b"10 %\r20 %\r30", b"10 %\r20 %\r", b"30"),
        (b"no end", b"", b"no end"),
        (b"", b"", b""),
        (b"x" * 70000, b"x" * 70000, b""),
    ],
)
def test_only_whole_lines_are_passed_on(text: bytes, whole: bytes, rest: bytes) -> None:
    assert rank.whole_lines(text, flush=False) == (whole, rest)
    assert rank.whole_lines(text, flush=True) == (text, b"")


def test_a_long_line_is_passed_on_in_pieces(agent: Agent) -> None:
    agent.start("-c", "print('x' * 300000)")
    lines = [frame["text"] for frame in agent.frames() if frame["event"] == "output"]
    assert len(lines) > 1
    assert "".join(lines) == "x" * 300000 + "\n"


def test_what_a_program_printed_last_is_passed_on_however_slow_the_host_is(agent: Agent) -> None:
    # More than fits into the way to the agent, and less than keeps the program from its end.
    process = agent.start("-c", "import os; print(os.getpid(), flush=True); print('x' * 280000)")
    program = int(json.loads(agent.stream.readline())["text"])
    wait_until(lambda: not is_alive(program), "the end of the program")
    time.sleep(1.5)  # the agent has no core
    *lines, end = agent.frames()
    assert "".join(line["text"] for line in lines) == "x" * 280000 + "\n"
    assert (end["event"], end["tail"][-1]) == ("rank-end", lines[-1]["text"][-rank.TAIL_WIDTH :])
    assert process.wait(50) == 0


def test_a_rank_ends_with_its_program_and_not_with_what_that_leaves_behind(agent: Agent) -> None:
    words = ["sh", "-c", "echo $$; while echo still here; do sleep 0.1; done"]
    process = agent.start("-c", f"import subprocess; subprocess.Popen({words})")
    pid = int(json.loads(agent.stream.readline())["text"].splitlines()[0])
    try:
        while (frame := json.loads(agent.stream.readline()))["event"] != "rank-end":
            pass
        assert frame["code"] == process.wait(50) == 0
        # It would end by SIGPIPE if nobody read what it prints.
        assert any("still here" in json.loads(agent.stream.readline())["text"] for _ in range(3))
        assert is_alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
    agent.frames()  # until the wrapper has ended too


def test_a_signal_is_told_as_such(agent: Agent) -> None:
    process = agent.start("-c", "import os; os.kill(os.getpid(), 9)")
    end = agent.frames()[-1]
    assert (end["code"], "terminated" in end) == (-signal.SIGKILL, False)
    assert process.wait() == 137


def test_a_signal_for_the_wrapper_reaches_the_program(agent: Agent) -> None:
    handler = "import signal,time; signal.signal(15, lambda *a: exit(5)); "
    process = agent.start("-c", handler + "print('ready', flush=True); time.sleep(60)")
    agent.stream.readline()
    process.terminate()
    assert process.wait(50) == 5  # on its own it would end after 60 s, with 0
    assert agent.frames()[-1]["terminated"]


def test_a_launcher_that_kills_its_process_gives_the_program_time_and_one_sigterm(agent: Agent) -> None:
    """mpirun sends SIGTERM, and a second later SIGKILL, to the group of its process."""
    program = (
        "import signal,time; got = []; signal.signal(15, lambda *a: got.append(1))\n"
        "print('ready', flush=True)\n"
        "while not got: time.sleep(0.01)\n"
        "time.sleep(0.5); print('saved after', len(got), flush=True)\n"
    )
    process = agent.start("-c", program)
    agent.stream.readline()
    process.terminate()
    os.kill(agent.hello["pid"], signal.SIGTERM)  # the agent's
    process.kill()
    *lines, end = agent.frames()
    assert [line["text"] for line in lines] == ["saved after 1\n"]
    assert (end["code"], process.wait(50)) == (0, -signal.SIGKILL)


def test_warnings_wait_for_the_handlers_of_the_program(agent: Agent) -> None:
    """Two at once: the kernel may give the second one to another thread than the first."""
    program = (
        "import os,signal,sys,time; print('began', flush=True); got = set()\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
        "for number in (10, 12): signal.signal(number, lambda number, _: got.add(number))\n"
        "while len(got) < 2: time.sleep(0.01)\n"
        "sys.exit(75)"
    )
    process = agent.start("-c", program)
    agent.stream.readline()
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        os.kill(process.pid, number)
    time.sleep(0.3)  # by default it ends the program, and this test fails, however slow the host is
    assert process.poll() is None
    (agent.folder / "go").touch()
    assert agent.frames()[-1]["code"] == process.wait(50) == 75


@pytest.mark.parametrize("who", ["agent", "wrapper"])
@pytest.mark.timed
def test_a_rank_does_not_outlive(agent: Agent, who: str) -> None:
    process = agent.start("-c", "import os,time; print(os.getpid(), flush=True); time.sleep(60)")
    pid = int(json.loads(agent.stream.readline())["text"])
    if who == "wrapper":
        process.kill()
    else:
        agent.stream.close()
        agent.connection.close()
    wait_until_gone(pid, 5.0)
    process.wait(50)


def test_torchruns_word_counts_over_an_outer_mpiruns() -> None:
    torchrun = {
        "TORCHELASTIC_RUN_ID": "x",
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "2",
    }
    assert rank.position_of({**MPIRUN, **torchrun}) == {
        "rank": 5,
        "local_rank": 1,
        "world_size": 6,
        "local_world_size": 2,
    }


# -- what an agent knows of its ranks: whether memory ran out, where they are --


PY_SPY = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or "py-spy"


def test_a_kill_by_the_kernel_explains_one_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    counter, limit = tmp_path / "memory.oom_control", tmp_path / "memory.limit_in_bytes"
    counter.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    limit.write_text(f"{256 << 20}\n")
    monkeypatch.setattr(
        ranks_here, "group_files", lambda of, v2, v1, process="self": iter([str(tmp_path / v1)])
    )
    ranks = Ranks()
    killed = {"code": -signal.SIGKILL}
    assert ranks.ended(0, killed) == killed
    counter.write_text("oom_kill 5\n")
    assert ranks.ended(1, {"code": 1}) == {"code": 1}
    assert ranks.ended(2, killed) == {**killed, "out_of_memory": {"limit": 256 << 20}}
    assert ranks.ended(3, killed) == killed
    assert ranks.other_kills() == {"kills": 0, "limit": 256 << 20}


def test_kills_below_ranks_are_counted_afterwards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For example a worker of a data loader; the group of a container goes with it."""
    group = tmp_path / "group"
    group.mkdir()
    monkeypatch.setattr(
        ranks_here,
        "group_files",
        lambda of, v2, v1, process="self": iter([f"{group}/{v2}", f"{tmp_path}/{v2}"]),
    )
    counter = group / "memory.events"
    counter.write_text("oom 0\noom_kill 4\n")
    (tmp_path / "memory.events").write_text("oom 9\noom_kill 9\n")
    (group / "memory.max").write_text("max\n")
    (tmp_path / "memory.max").write_text(f"{1536 << 20}\n")
    ranks = Ranks()
    counter.write_text("oom 2\noom_kill 6\n")
    assert ranks.ended(1, {"code": 1}) == {"code": 1}
    shutil.rmtree(group)
    assert ranks.other_kills() == {"kills": 2, "limit": 1536 << 20}


@pytest.mark.parametrize(("text", "limit"), [("max\n", None), ("9223372036854771712\n", None), ("7\n", 7)])
def test_no_limit_is_written_in_two_ways(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, limit: int | None
) -> None:
    (tmp_path / "memory.max").write_text(text)
    monkeypatch.setattr(
        ranks_here, "group_files", lambda of, v2, v1, process="self": iter([str(tmp_path / v2)])
    )
    assert memory_limit() == limit


def test_the_counter_of_this_machine_can_be_read() -> None:
    """An unreadable counter counts nothing, and then no kill would ever be explained."""
    places = [*cgroups.group_files("memory", "memory.events", "memory.oom_control"), "/proc/vmstat"]
    texts = [Path(place).read_text() for place in places if Path(place).is_file()]
    counts = [int(count) for text in texts for count in re.findall(r"^oom_kill (\d+)$", text, re.MULTILINE)]
    assert counts, f"no counter in {places}"
    assert ranks_here.OomKills().count() == counts[0]


def test_the_own_groups_counter_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cgroups, "ROOT", f"{tmp_path}")
    own, *_ = cgroups.group_files("memory", "memory.events", "memory.oom_control")
    Path(own).parent.mkdir(parents=True)
    Path(own).write_text("low 0\noom_kill 123456789\n")
    assert ranks_here.OomKills().count() == 123456789


OLD = "cpu/x/cpu.cfs_"


@pytest.mark.parametrize(
    ("group", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, 4),
        ("0::/\n", {"cpu.max": "100000 100000\n"}, 1),  # as docker run --cpus 1
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "350000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "20000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "800000 100000\n"}, 4),
        ("4:cpu,cpuacct:/x\n", {f"{OLD}quota_us": "200000\n", f"{OLD}period_us": "100000\n"}, 2),
        ("4:cpu,cpuacct:/x\n", {f"{OLD}quota_us": "-1\n", f"{OLD}period_us": "100000\n"}, 4),
        ("", {}, 4),
    ],
)  # fmt: skip
def test_the_cores_of_a_host_are_those_that_its_quotas_allow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, group: str, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
    groups = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in {"proc/self/cgroup": group, **groups}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cgroups.usable_cores(str(tmp_path)) == cores


def test_a_stack_is_read_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "PY_SPY_SECONDS", 60.0)  # a busy machine may take more than a host should
    program = "import time\ndef nap():\n    print('here', flush=True)\n    time.sleep(60)\nnap()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        taken = take_stacks(PY_SPY, {7: (process.pid, "S")}, "/code")
        process.kill()
    assert [frame[0] for frame in taken["7"]["frames"]] == ["nap", "<module>"]


def test_why_there_is_no_stack_is_said() -> None:
    assert "FileNotFoundError" in take_stacks("/no/py-spy", {0: (1, "S")}, "/code")["0"]["error"]
    assert take_stacks(PY_SPY, {0: (2**22 - 1, "S")}, "/code")["0"]["error"]


def test_a_python_that_starts_has_no_stack_yet(tmp_path: Path) -> None:
    tool = tmp_path / "py-spy"
    tool.write_text("#!/bin/sh\necho '[]'\n")
    tool.chmod(0o755)
    assert take_stacks(str(tool), {0: (1, "S")}, "/code") == {"0": {"error": "py-spy printed no stack"}}
