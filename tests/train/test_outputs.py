"""What a run leaves where it is asked to, and how options change it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from muster.train.config import TrainConfig
from muster.train.job.failure import TrainError
from muster.train.main import train
from muster.train.reporting.outputs import TensorBoard
from tests.train.forked import on_hosts

if TYPE_CHECKING:
    from muster.train.job.group import Group
    from tests.train.conftest import Launch


def test_every_rank_leaves_a_log_and_a_profile(launch: Launch) -> None:
    # Two steps an epoch: a profile has thousands of events for each.
    training = ("--spawn", "2", "--epochs", "2", "--data", "synthetic", "--limit", "64", "--batch-size", "32")
    files = ("--rank-logs", "--profile", "--deterministic", "--warm-up", "0")
    job = launch("spawn", 2, "-m", "muster.train", *training, *files)
    assert job.status == 0, job.stderr
    assert "64 training and 400 held-out samples" in job.stdout
    assert job.losses[1] < job.losses[0]
    for rank in range(2):
        log = (job.out / "logs" / f"rank-{rank:04d}.log").read_text()
        assert f"rank {rank} of 2" in log
        assert "epoch 2/2" in log
        trace = json.loads((job.out / "profile" / f"rank-{rank:04d}.json").read_text())
        names = {event.get("name", "") for event in trace["traceEvents"]}
        assert "aten::convolution" in names


def test_tensorboard_without_its_package_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(TrainError, match="pip install tensorboard"):
        TensorBoard(tmp_path)


def test_an_earlier_run_stays_where_it_is_if_tensorboard_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    config = TrainConfig(out=tmp_path, epochs=1, limit=64)
    on_hosts(tmp_path, 1, partial(train, config))
    files = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    assert {path.name for path in files} >= {"metrics.jsonl", "state.pt"}

    def refuse(group: Group) -> None:
        with pytest.raises(TrainError, match="pip install tensorboard"):
            train(replace(config, tensorboard=True), group)

    on_hosts(tmp_path, 1, refuse)
    assert {path: path.read_bytes() for path in files} == files
    assert not list(tmp_path.glob("checkpoints.*"))


def test_bfloat16_is_for_networks_of_float32() -> None:
    with pytest.raises(TrainError, match="--amp needs --dtype float32, got float64"):
        TrainConfig(amp=True, dtype="float64")


def test_the_help_says_that_the_batch_is_global(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        TrainConfig.from_argv(["--help"], {})
    text = " ".join(capsys.readouterr().out.split())
    assert "GLOBAL batch: samples per step of all ranks together" in text
    for section in ("learning:", "ranks:", "strategy:", "output:", "checkpoints:"):
        assert section in text
