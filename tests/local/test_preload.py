"""With `--preload`, a process with their imports forks the ranks of a restart; they are as others."""

from __future__ import annotations

import functools
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.agent.processes import process_table
from tests.launching import Project
from tests.processes import is_alive, wait_until_gone
from tests.waiting import wait_until

# Prints how Python has started it; its first attempt ends by SIGKILL as soon as the test wants that.
PROGRAM = """
import atexit, gc, json, os, random, resource, signal, stat, sys, threading, time
import multiprocessing
import numpy

def twice(number):
    return 2 * number

OWN = {"MUSTER_RESTART", "MASTER_PORT", "TMPDIR", "MUSTER_AGENT", "SHLVL", "_", "TORCHELASTIC_RUN_ID"}

def names_of_streams():
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        yield [stream.name, stream.mode, stream.encoding, stream.errors, stream.line_buffering,
               stream.write_through, stream.closed, stream.seekable(), os.isatty(stream.fileno())]

def status():
    for line in open("/proc/self/status"):
        name, _, value = line.partition(":")
        if name in {"Umask", "Threads", "SigQ", "SigBlk", "SigIgn", "SigCgt", "NoNewPrivs", "CapEff",
                    "Cpus_allowed", "Groups", "Uid"} - {"SigQ"}:
            yield name, value.strip()

def main():
    main = sys.modules["__main__"]
    here = {
        "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": str(sys.flags),
        "warnoptions": sys.warnoptions, "xoptions": sys._xoptions, "executable": sys.executable,
        "prefix": sys.prefix, "main": [main.__name__, main.__file__, main.__spec__ and main.__spec__.name,
        main.__package__,
        type(main.__loader__).__name__, getattr(main, "__cached__", "none"), sorted(vars(main))],
        "cmdline": open("/proc/self/cmdline").read().rstrip(chr(0)), "cwd": os.getcwd(),
        "env": {name: value for name, value in os.environ.items()
                if name not in OWN and not name.startswith(("OMPI_", "PMIX_", "PRTE_", "TORCHELASTIC_"))},
        "status": dict(status()), "nice": os.nice(0), "oom": open("/proc/self/oom_score_adj").read(),
        "limits": open("/proc/self/limits").read(), "scheduler": os.sched_getscheduler(0),
        "streams": list(names_of_streams()), "threads": [each.name for each in threading.enumerate()],
        "descriptors": sorted(os.readlink(f"/proc/self/fd/{fd}").partition(":")[0]
                              for fd in os.listdir("/proc/self/fd") if int(fd) < 3),
        "more descriptors": len(os.listdir("/proc/self/fd")),
        "group": os.getpgid(0) in {os.getpid(), os.getppid()},
        "parent": open(f"/proc/{os.getppid()}/cmdline").read().split(chr(0))[1:3],
        "handlers": {name.name: str(signal.getsignal(name)) for name in signal.valid_signals()
                     if isinstance(name, signal.Signals) and "function" not in str(signal.getsignal(name))},
        "meta_path": [str(getattr(finder, "__name__", type(finder).__name__)) for finder in sys.meta_path],
        "excepthook": sys.excepthook is sys.__excepthook__,
        "shutdown": threading._shutdown.__qualname__, "main thread": threading.current_thread().name,
        "garbage": gc.get_freeze_count(),
        "customize": sys.modules["sitecustomize"].__file__.rpartition("/")[2],
    }
    random_numbers = [random.random(), float(numpy.random.rand())]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        here["spawned"] = pool.map(twice, [21])
    attempt, rank = os.environ["MUSTER_RESTART"], os.environ["RANK"]
    here["random"] = random_numbers
    with open(os.path.join(os.environ["SEEN"], f"{attempt}-{rank}.json"), "w") as file:
        json.dump(here, file)
    print("seen", attempt, flush=True)
    if attempt == "0":
        while not os.path.exists(os.path.join(os.environ["SEEN"], "go")):
            time.sleep(0.05)
        if rank == str(int(os.environ["WORLD_SIZE"]) - 1):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(300)
    atexit.register(print, "left")
    sys.exit(0)

if __name__ == "__main__":
    main()
"""


def events(project: Project) -> list[dict[str, Any]]:
    lines = [path.read_text() for path in (project.path / "runs").glob("*/events.jsonl")]
    return [json.loads(line) for line in "".join(lines).splitlines()]


def preloaded(project: Project) -> list[str]:
    return [event["text"] for event in events(project) if event["type"] == "host.preloaded"]


def environ_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def waiting_for(seen: Path) -> int:
    """The process of this test that waits with the imports."""
    marks = (b"\0MUSTER_PRELOAD_FD=", str(seen).encode())
    (pid,) = [pid for pid in process_table() if all(mark in environ_of(pid) for mark in marks)]
    return pid


def start(project: Project, seen: Path, *words: str, ranks: int = 2) -> Any:
    (project.path / "looks.py").write_text(PROGRAM)
    more = ("--np", str(ranks), "--env", f"SEEN={seen}", "--max-restarts", "1", "--preload")
    return project.start(*more, *words)


# A single rank has all cores, and with them threads of NumPy's OpenBLAS.
@pytest.mark.parametrize(
    ("ranks", "words"), [(2, ("--script", "looks.py", "--args=a b")), (1, ("--module", "looks"))]
)
def test_it_starts_as_by_python(ranks: int, words: tuple[str, ...], project: Project, tmp_path: Path) -> None:
    with start(project, tmp_path, *words, ranks=ranks) as driver:
        wait_until(lambda: preloaded(project), "the imports to be ready")
        pid = waiting_for(tmp_path)
        (tmp_path / "go").touch()
        output, _ = driver.communicate(timeout=120)
    assert driver.returncode == 0, output
    assert output.count("localhost: the next attempt starts with its imports done\n") == 1, output
    assert preloaded(project)[0].startswith("the next attempt starts with its imports done ("), output
    wait_until_gone(pid)
    for rank in range(ranks):
        cold, warm = (json.loads((tmp_path / f"{attempt}-{rank}.json").read_text()) for attempt in (0, 1))
        assert cold.pop("random") != warm.pop("random")
        assert warm == cold
    others = [json.loads((tmp_path / f"1-{rank}.json").read_text())["random"] for rank in range(ranks)]
    assert len({number for numbers in others for number in numbers}) == 2 * ranks


def test_without_the_process_the_ranks_start_as_ever(project: Project, tmp_path: Path) -> None:
    with start(project, tmp_path, "--script", "looks.py") as driver:
        wait_until(lambda: preloaded(project), "the imports to be ready")
        pid = waiting_for(tmp_path)
        os.kill(pid, signal.SIGKILL)
        wait_until_gone(pid)
        (tmp_path / "go").touch()
        output, _ = driver.communicate(timeout=120)
    assert driver.returncode == 0, output
    assert (tmp_path / "1-0.json").exists()


def test_the_process_ends_with_its_agent(project: Project, tmp_path: Path) -> None:
    with start(project, tmp_path, "--script", "looks.py") as driver:
        wait_until(lambda: preloaded(project), "the imports to be ready")
        pid = waiting_for(tmp_path)
        agent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(agent, signal.SIGKILL)
        wait_until_gone(pid)
        driver.kill()
    assert not is_alive(pid)


# Each attempt ends when its file is there, with the status that the file has.
WAITS = """
import os, sys, time
import numpy
attempt, seen = int(os.environ["MUSTER_RESTART"]), os.environ["SEEN"]
print("attempt", attempt, flush=True)
name = os.path.join(seen, f"end-{attempt}")
while not os.path.exists(name):
    time.sleep(0.05)
if os.environ["RANK"] == "1":
    sys.exit(int(open(name).read()))
time.sleep(300)
"""


def waiting_torchruns(seen: Path) -> list[int]:
    """The processes of this test that wait as the next torchrun."""
    return [
        pid
        for pid in process_table()
        if "muster_torchrun.py" in arguments(pid) and str(seen).encode() in environ_of(pid)
    ]


def arguments(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.mark.parametrize("restarts", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_torchruns_of_restarts_have_imported(project: Project, tmp_path: Path, restarts: int) -> None:
    (project.path / "waits.py").write_text(WAITS)
    words = ("--np", "2", "--env", f"SEEN={tmp_path}", "--max-restarts", str(restarts), "--preload")
    seen: list[int] = []

    def next_waits(attempt: int) -> bool:
        """Before an attempt has started, a fork of its torchrun may be taken for the next one."""
        return len(preloaded(project)) == attempt + 1 and len(waiting_torchruns(tmp_path)) == min(
            2, attempt + 1
        )

    with project.start(*words, "--launcher", "torchrun", "--script", "waits.py") as driver:
        for attempt in range(restarts):
            wait_until(functools.partial(next_waits, attempt), "the torchrun of the next attempt")
            (waiting,) = {*waiting_torchruns(tmp_path)} - {*seen}
            seen.append(waiting)
            (tmp_path / f"end-{attempt}").write_text(str(7 + attempt))
        wait_until(lambda: len(preloaded(project)) == restarts + 1, "the start of the last attempt")
        assert waiting_torchruns(tmp_path) == [seen[-1]]
        (tmp_path / f"end-{restarts}").write_text("9")
        output, _ = driver.communicate(timeout=120)
    assert driver.returncode == 9, output
    assert "exit status 9" in output
    assert "RuntimeWarning" not in output
    assert preloaded(project)[1:] == ["ranks started with their imports done"] * restarts
    assert waiting_torchruns(tmp_path) == []
