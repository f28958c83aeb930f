"""A rank that fails ends the whole job, at once, with its own status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from muster.train.job.failure import TrainError, fail_together, report, write_record
from tests.load import hold
from tests.train.conftest import environment

if TYPE_CHECKING:
    from tests.train.conftest import Launch

LEAVING_RANK = str(Path(__file__).with_name("leaving_rank.py"))
PROMPTLY = 2.0  # seconds
SAYS = {
    ("mpirun", "exception"): "RuntimeError: out of paper",
    ("mpirun", "exit"): "Exit code:    3",
    ("mpirun", "kill"): "signal 9",
    ("torchrun", "exception"): "RuntimeError: out of paper",
    ("spawn", "exit"): "error: rank 1 of 2 was the first to fail: exit status 3",
    ("spawn", "crash"): "Fatal Python error: Segmentation fault",
}
RECORDED = {"exception": "RuntimeError: out of paper", "exit": "SystemExit: 3"}


@pytest.mark.timed
@pytest.mark.parametrize(
    ("launcher", "way", "status", "meet"),
    [
        pytest.param("mpirun", "exception", 1, False, id="mpirun, exception, in MPI"),
        pytest.param("mpirun", "exit", 3, True, id="mpirun, exit, without MPI"),
        # A killed rank says nothing itself; tests/local/test_local_launch.py has what Muster says of it.
        pytest.param("mpirun", "kill", 137, False, id="mpirun, kill, in MPI", marks=pytest.mark.soak),
        pytest.param("torchrun", "exception", 1, False, id="torchrun, exception"),
        pytest.param("spawn", "exit", 3, False, id="spawn, exit"),
        pytest.param("spawn", "crash", 139, False, id="spawn, crash", marks=pytest.mark.soak),
    ],
)
def test_a_leaving_rank_is_reported(launch: Launch, launcher: str, way: str, status: int, meet: bool) -> None:
    words = [way, "spawn"] if launcher == "spawn" else [way]
    job = launch(launcher, 2, LEAVING_RANK, *words, meet=meet)
    assert job.status == status, job.stderr
    hold(f"{launcher}, {way}: end", job.ended - float((job.out / "left").read_text()), PROMPTLY)
    assert SAYS[launcher, way] in job.stderr
    assert "by peer" not in job.stderr  # what the other rank met is a consequence
    if way in {"exception", "exit"} and launcher != "torchrun":  # torchrun has a place of its own
        (record,) = (job.out / "errors").iterdir()
        assert record.name == "rank-0001.json"
        assert json.loads(record.read_text())["message"]["message"].startswith(RECORDED[way])


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (
            TrainError("no paper in the tray\nput some in"),
            2,
            "error: no paper in the tray\nerror: put some in\n",
        ),
        (SystemExit(3), 3, ""),
        (SystemExit(None), 0, ""),
        (SystemExit(0), 0, ""),
        (SystemExit("no paper"), 1, "no paper\n"),
        (KeyboardInterrupt(), 130, ""),
        (RuntimeError("out of paper"), 1, "RuntimeError: out of paper\n"),
    ],
)
def test_each_kind_of_end_has_its_status_and_its_words(
    capsys: pytest.CaptureFixture[str], error: BaseException, status: int, says: str
) -> None:
    assert report(error) == status
    assert capsys.readouterr().err == says


def test_a_reader_of_the_output_that_leaves_ends_a_rank_quietly() -> None:
    program = """
from muster.train.job.failure import fail_together
with fail_together():
    while True:
        print("step", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as rank:
        assert rank.stdout
        assert rank.stderr
        rank.stdout.readline()
        rank.stdout.close()
        assert rank.stderr.read() == b""
    assert rank.returncode == 1


def test_another_broken_pipe_is_an_error_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(BrokenPipeError("to a worker")) == 1
    assert capsys.readouterr().err == "BrokenPipeError: to a worker\n"


def test_the_record_is_what_torchrun_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.elastic.multiprocessing.api import ProcessFailure

    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "deep" / "error.json"))
    write_record(ValueError("no paper"))
    failure = ProcessFailure(
        local_rank=1, pid=7, exitcode=1, error_file=str(tmp_path / "deep" / "error.json")
    )
    assert "'message': 'ValueError: no paper'" in str(failure.message)
    assert abs(failure.timestamp - time.time()) < 60


@pytest.mark.soak  # the one above has the record that torchrun shows
def test_torchrun_shows_the_words_of_a_mistake_and_no_traceback(launch: Launch) -> None:
    # Found before ranks meet, so one shows it.
    job = launch("torchrun", 1, "-m", "muster.train", "--epochs", "0")
    assert job.status == 1
    assert "traceback : error: --epochs must be at least 1" in job.stderr  # the word is torchrun's
    assert 'File "' not in job.stderr.partition("Root Cause")[2]


@pytest.mark.parametrize(
    ("words", "victim"),
    [("[pair.cc:547] Connection closed by peer [127.0.0.1]:9", True), ("out of paper", False)],
)
def test_a_victim_lets_the_first_failure_speak(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: str, victim: bool
) -> None:
    said_before: list[str] = []
    sleep = Mock(side_effect=lambda seconds: said_before.append(capfd.readouterr().err))
    monkeypatch.setattr(
        "muster.train.job.failure.time", Mock(sleep=sleep)
    )  # other threads may sleep meanwhile
    monkeypatch.setattr("muster.train.job.failure.end_job", lambda status: None)
    with pytest.raises(RuntimeError), fail_together():
        raise RuntimeError(words)
    assert said_before == [""] * victim
    assert words in capfd.readouterr().err


def test_a_mistake_that_a_program_does_not_catch_is_shown_without_a_traceback() -> None:
    said = "PMIX_RANK=1: a launcher started this process, but did not say of how many"
    program = "from muster.train import run\nrun(print)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PMIX_RANK": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stderr.startswith(f"error: {said}"), done.stderr
    assert ("Traceback" in done.stderr, done.returncode) == (False, 2)
