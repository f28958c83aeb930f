"""Ranks without a launcher: signals to the process that started them, and how they fail."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.conftest import TIME_LIMIT, environment
from tests.waiting import wait_until

ENDLESS = ("--spawn", "2", "--epochs", "1000000", "--limit", "256", "--log-every", "1")


def _steps_begun(out: Path) -> list[str]:
    file = out / "steps.jsonl"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGUSR1, marks=pytest.mark.soak)])
def test_a_signal_to_the_starting_process_has_the_ranks_save_and_end(
    tmp_path: Path, number: signal.Signals
) -> None:
    started = subprocess.Popen(
        [sys.executable, "-m", "muster.train", *ENDLESS],
        env=environment(MUSTER_OUT=str(tmp_path)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: started.poll() is not None or _steps_begun(tmp_path), "a step of both ranks")
        os.kill(started.pid, number)
        _, stderr = started.communicate(timeout=TIME_LIMIT)
    finally:
        started.kill()
    assert started.returncode == 75, stderr
    assert "first to fail" not in stderr
    said = re.search(r"asked to end: saved step (\d+); status 75, a restart goes on from there\n", stderr)
    assert said, stderr
    assert json.loads(_steps_begun(tmp_path)[-1])["step"] == int(said[1])
    assert (tmp_path / "checkpoints" / f"step-{int(said[1]):08d}").exists()


SAVES = """
import os, signal, time
from muster.train import Preemption, run

def train(job):
    with Preemption(job) as preemption:
        os.kill(os.getpid(), signal.SIGTERM)
        while not preemption.asked():
            pass
        if job.rank == 0:
            time.sleep(2)  # longer than the other rank takes to end, and than it is then waited for
            (job.out / "saved").touch()
        preemption.leave("saved")

if __name__ == "__main__":
    run(train, spawn=2)
"""


def test_no_rank_leaves_while_another_saves(tmp_path: Path) -> None:
    script = tmp_path / "saves.py"
    script.write_text(SAVES)
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment(MUSTER_OUT=str(tmp_path)),
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )
    assert (done.returncode, (tmp_path / "saved").exists()) == (75, True), done.stderr


SCRIPT = """
import sys
from muster.train import TrainError, run

def fail(job):
    raise TrainError("no paper in the tray") if sys.argv[1] == "mistake" else ValueError("a bug")

if __name__ == "__main__":
    run(fail, spawn=1)
"""


@pytest.mark.parametrize(
    ("what", "status", "last"),
    [("mistake", 2, "error: no paper in the tray"), ("bug", 1, "ValueError: a bug")],
)
def test_a_single_rank_fails_as_several_do(tmp_path: Path, what: str, status: int, last: str) -> None:
    script = tmp_path / "fails.py"
    script.write_text(SCRIPT)
    failed = subprocess.run(
        [sys.executable, str(script), what],
        env=environment(MUSTER_OUT=str(tmp_path)),
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )
    assert failed.returncode == status, failed.stderr
    assert failed.stderr.endswith(f"{last}\nerror: rank 0 of 1 was the first to fail: exit status {status}\n")
    assert failed.stderr.count("Traceback") == (what == "bug")
    (record,) = (tmp_path / "errors").iterdir()
    assert json.loads(record.read_text())["message"]["message"] == last
