"""The learning rate, and what a run writes about its epochs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from muster.train.demo.loop import learning_rate
from muster.train.reporting.metrics import EpochMetrics, MetricsFile
from muster.train.reporting.steps import StepLog

EPOCH = 10  # steps


@pytest.mark.parametrize("epochs", [1, 2, 3, 15])
@pytest.mark.parametrize("warm_up", [0, 1, 2, 20])
def test_every_training_reaches_the_peak_and_comes_down_from_it(epochs: int, warm_up: int) -> None:
    steps = epochs * EPOCH
    rates = [learning_rate(step, peak=0.4, warm_up=warm_up * EPOCH, steps=steps) for step in range(steps)]
    top = rates.index(max(rates))
    assert max(rates) == pytest.approx(0.4)
    assert top + 1 in range(min(warm_up * EPOCH, steps // 2), min(warm_up * EPOCH, steps // 2) + 2)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[-1] < 0.2 * 0.4


def test_one_step_has_the_peak() -> None:
    assert learning_rate(0, peak=0.4, warm_up=1, steps=1) == 0.4


LINE = EpochMetrics(1, 4, 0.5, 0.01, 0.9, 100.0, 1.7e9)


def _written(path: Path, *epochs: int) -> Path:
    file = MetricsFile(path, after=0)
    for epoch in epochs:
        file.append(replace(LINE, epoch=epoch))
    return path


def _epochs(path: Path) -> list[int]:
    return [json.loads(line)["epoch"] for line in path.read_text().splitlines()]


def test_a_fresh_start_sets_the_earlier_metrics_aside(tmp_path: Path) -> None:
    path = _written(tmp_path / "metrics.jsonl", 1, 2)
    assert MetricsFile(path, after=0).aside == tmp_path / "metrics.1.jsonl"
    assert _epochs(tmp_path / "metrics.1.jsonl") == [1, 2]
    assert _epochs(path) == []
    _written(path, 1)
    assert MetricsFile(path, after=0).aside == tmp_path / "metrics.2.jsonl"
    assert _epochs(tmp_path / "metrics.1.jsonl") == [1, 2]


def test_a_resumed_run_continues_its_metrics_and_loses_none(tmp_path: Path) -> None:
    path = _written(tmp_path / "metrics.jsonl", 1, 2)
    with path.open("a") as file:
        file.write('{"epoch": 3, "st')  # the run was killed
    assert MetricsFile(path, after=2).aside is None
    assert _epochs(path) == [1, 2]
    assert MetricsFile(path, after=1).aside == tmp_path / "metrics.1.jsonl"
    assert _epochs(path) == [1]
    assert _epochs(tmp_path / "metrics.1.jsonl") == [1, 2]


def test_metrics_are_complete_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _written(tmp_path / "metrics.jsonl", 1, 2)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("muster.train.reporting.metrics.os.fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        MetricsFile(path, after=1)
    assert _epochs(path) == [1, 2]


def test_a_loss_that_is_not_finite_is_null(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl", after=0)
    for loss in (float("nan"), float("inf"), 0.5):
        file.append(replace(LINE, loss=loss))

    def refuse(word: str) -> None:
        raise ValueError(word)

    lines = [json.loads(line, parse_constant=refuse) for line in file.path.read_text().splitlines()]
    assert [line["loss"] for line in lines] == [None, None, 0.5]


@pytest.mark.parametrize(("device", "waits"), [("cuda", 1), ("cpu", 0)])
def test_a_restart_that_waits_waits_for_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, waits: int
) -> None:
    synchronize = Mock()
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    log = StepLog(Mock(rank=1, device=torch.device(device)), tmp_path)
    log.restart()
    assert synchronize.call_count == 0
    log.restart(wait=True)
    assert synchronize.call_count == waits
