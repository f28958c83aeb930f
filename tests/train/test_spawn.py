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
def test_a_signal_to_the_starter_has_ranks_save_and_end(tmp_path: Path, number: signal.Signals) -> None:
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


SCRIPT = """
import sys
from muster.train import TrainError, run

def fail(job, what):
    raise TrainError("no paper in the tray") if what == "mistake" else ValueError("a bug")

if __name__ == "__main__":
    for what in ("mistake", "bug"):
        try:
            run(fail, what, spawn=1)
        except SystemExit as end:
            print(f"ended with {end.code}", file=sys.stderr)
"""


def test_a_single_rank_fails_as_several_do(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment(MUSTER_OUT=str(tmp_path)),
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIME_LIMIT,
        check=True,
    )
    mistake, bug, _ = re.split(r"ended with (?=\d)", done.stderr)
    first = "error: rank 0 of 1 was the first to fail: exit status"
    assert mistake == f"error: no paper in the tray\n{first} 2\n"
    assert bug.startswith("2\nTraceback")
    assert bug.endswith(f"\nValueError: a bug\n{first} 1\n")
    assert bug.count("Traceback") == 1
    (record,) = (tmp_path / "errors").iterdir()
    assert json.loads(record.read_text())["message"]["message"] == "ValueError: a bug"
