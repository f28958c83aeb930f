"""A checkpoint is whole, or it is refused; and a training that continues from one is the same training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from train import checkpoint
from train.errors import TrainError

if TYPE_CHECKING:
    from tests.train.conftest import Launch


def _state(epoch: int) -> dict[str, Any]:
    """Return a state whose every number is its epoch, some megabytes so that a mixture would show."""
    weights = torch.full((1_000_000,), float(epoch))
    return {"model": {"weights": weights}, "optimizer": {}, "epoch": epoch, "rng": torch.get_rng_state()}


def _save_for_ever(path: Path) -> None:
    torch.set_num_threads(1)  # a forked process has none of the threads that torch started before
    epoch = 0
    while True:
        epoch += 1
        checkpoint.save(path, _state(epoch))


@pytest.mark.parametrize("milliseconds", range(0, 40, 4))
def test_a_kill_in_the_middle_of_a_save_leaves_a_whole_checkpoint(tmp_path: Path, milliseconds: int) -> None:
    path = tmp_path / "checkpoint.pt"
    child = os.fork()
    if child == 0:
        _save_for_ever(path)
    _wait_for(lambda: path.exists() and path.stat().st_size > 4_000_000)
    time.sleep(milliseconds / 1000)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    state = checkpoint.load(path)
    assert torch.all(state["model"]["weights"] == state["epoch"])


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("kept", [0, 1, 1000, 3_999_000])
def test_a_truncated_checkpoint_is_a_clear_error(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, _state(1))
    os.truncate(path, kept)
    with pytest.raises(TrainError, match=r"checkpoint\.pt is cut short or is not a checkpoint"):
        checkpoint.load(path)


def test_a_missing_checkpoint_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match=r"cannot read the checkpoint .*none\.pt: No such file"):
        checkpoint.load(tmp_path / "none.pt")


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "harm",))

    torch.save({**_state(1), "model": Harm()}, tmp_path / "checkpoint.pt")
    with pytest.raises(TrainError):
        checkpoint.load(tmp_path / "checkpoint.pt")
    assert not (tmp_path / "harm").exists()


def test_a_training_that_is_killed_and_resumed_has_the_same_curve(launch: Launch, tmp_path: Path) -> None:
    training = ("-m", "train", "--epochs", "8", "--limit", "800")
    uninterrupted = launch("single", 1, *training)
    _kill_in_its_third_epoch([sys.executable, *training, "--out", str(tmp_path)], tmp_path / "metrics.jsonl")
    resumed = launch(
        "single", 1, *training, "--out", str(tmp_path), "--resume", str(tmp_path / "checkpoint.pt")
    )
    assert "epoch 1/8" not in resumed.stdout
    assert _losses(tmp_path / "metrics.jsonl") == uninterrupted.losses
    assert resumed.verdict["accuracy"] == uninterrupted.verdict["accuracy"]


def _kill_in_its_third_epoch(command: list[str], metrics: Path) -> None:
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    _wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") >= 2)
    process.kill()
    process.wait()
    assert metrics.read_text().count("\n") < 8


def _losses(metrics: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
