"""What a run leaves where it is asked to, and how options change it."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from muster.train.demo.config import TrainConfig
from muster.train.demo.main import train
from muster.train.job.failure import TrainError
from muster.train.reporting.metrics import MetricsFile
from muster.train.reporting.outputs import TensorBoard
from muster.train.reporting.steps import StepMetrics
from tests.train.forked import on_hosts

if TYPE_CHECKING:
    from muster.train.job.group import Job


FIGURES = ("--log-every", "2", "--clip", "100")


def _require_figures(path: Path, steps: list[int], batch_size: int) -> None:
    """The file must have these steps, each with all fields of the schema, whose parts make up the whole."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == steps
    for line in lines:
        assert list(line) == [field.name for field in fields(StepMetrics)]
        parts = (line["data_seconds"], line["compute_seconds"], line["optimizer_seconds"])
        assert min(parts) > 0
        assert sum(parts) == pytest.approx(line["step_seconds"])
        assert line["samples_per_second"] == pytest.approx(batch_size / line["step_seconds"])
        assert line["gradient_norm"] > 0
        assert line["tokens_per_second"] is None
    assert lines[-1]["loss"] < lines[0]["loss"]


def test_every_rank_leaves_a_profile(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # Two steps an epoch: a profile has thousands of events for each.
    training = ("--epochs", "2", "--data", "synthetic", "--limit", "64", "--batch-size", "32")
    files = ("--out", str(tmp_path), "--profile", "3:4", "--warm-up", "0", *FIGURES)
    on_hosts(tmp_path, 2, partial(train, TrainConfig.from_argv([*training, *files], {})))
    assert "64 training and 400 held-out samples" in capfd.readouterr().out
    _require_figures(tmp_path / "steps.jsonl", [2, 4], batch_size=32)
    for rank in range(2):
        trace = json.loads((tmp_path / "profile" / f"rank-{rank:04d}.json").read_text())
        names = {event.get("name", "") for event in trace["traceEvents"]}
        assert "aten::convolution" in names


def test_tensorboard_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(TrainError, match="pip install tensorboard"):
        TensorBoard(tmp_path)


def test_without_tensorboard_the_old_run_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    config = TrainConfig(out=tmp_path, epochs=1, limit=64)
    on_hosts(tmp_path, 1, partial(train, config))
    files = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    assert {path.name for path in files} >= {"metrics.jsonl", "state.pt"}

    def refuse(group: Job) -> None:
        with pytest.raises(TrainError, match="pip install tensorboard"):
            train(replace(config, tensorboard=True), group)

    on_hosts(tmp_path, 1, refuse)
    assert {path: path.read_bytes() for path in files} == files
    assert not list(tmp_path.glob("checkpoints.*"))


@pytest.mark.parametrize("steps", ["10", "0:3", "5:4", "a:b", "1:2:3"])
def test_what_is_not_two_steps_to_profile_is_refused(steps: str) -> None:
    with pytest.raises(TrainError, match=f"--profile must be FIRST:LAST, .*, got {steps}"):
        TrainConfig.from_argv(["--profile", steps], {})


def test_the_help_says_that_the_batch_is_global(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        TrainConfig.from_argv(["--help"], {})
    text = " ".join(capsys.readouterr().out.split())
    assert "GLOBAL batch: samples per step of all ranks together" in text
    for section in ("learning:", "ranks:", "output:", "checkpoints:"):
        assert section in text


def test_lines_of_metrics_that_no_training_wrote_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(["[" * 100_000, "[]", '{"epoch": ' + "9" * 400 + "}", '{"epoch": 1}', ""]))
    MetricsFile(path, after=1)
    assert path.read_text() == '{"epoch": 1}\n'
