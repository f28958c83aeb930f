"""TrainConfig.from_argv: what a command line means, and how it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.train.demo.config import TrainConfig
from muster.train.job.failure import TrainError


def test_options_come_from_the_command_line() -> None:
    argv = ["--epochs", "3", "--batch-size", "128", "--backend", "gloo", "--resume", "a b.pt"]
    config = TrainConfig.from_argv(argv, {})
    assert config == TrainConfig(epochs=3, batch_size=128, backend="gloo", resume="a b.pt")


def test_muster_out_is_the_default_of_out_and_only_that() -> None:
    environ = {"MUSTER_OUT": "runs/job-7"}
    assert TrainConfig.from_argv([], {}).out == Path("runs/alone")
    assert TrainConfig.from_argv([], environ).out == Path("runs/job-7")
    assert TrainConfig.from_argv(["--out", "here"], environ).out == Path("here")


def test_muster_backend_is_the_default_of_backend_and_is_checked_too() -> None:
    environ = {"MUSTER_BACKEND": "mpi"}
    assert TrainConfig.from_argv([], environ).backend == "mpi"
    assert TrainConfig.from_argv(["--backend", "gloo"], environ).backend == "gloo"
    with pytest.raises(TrainError, match=r"--backend must be one of auto gloo .*, got smoke"):
        TrainConfig.from_argv([], {"MUSTER_BACKEND": "smoke"})


@pytest.mark.parametrize("argument", ["--local-rank=1", "--local_rank=1"])
def test_the_argument_that_torch_distributed_launch_adds_is_ignored(argument: str) -> None:
    assert TrainConfig.from_argv([argument], {}) == TrainConfig()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--epochs", "0"], "--epochs must be at least 1, got 0"),
        (["--batch-size", "-4"], "--batch-size must be at least 1, got -4"),
        (["--lr", "nan"], "--lr must be above 0, got nan"),
        (["--seed", "-1"], "--seed must be from 0 to 4294967295, got -1"),
        (["--limit", "-1"], "--limit must be 0 or more, got -1"),
        (["--save-every", "-1"], "--save-every must be 0 or more, got -1"),
        (["--keep", "0"], "--keep must be at least 1, got 0"),
        (
            ["--epochs", "many"],
            "argument --epochs: invalid int value: 'many' (see python -m muster.train --help)",
        ),
        (["--epoch", "3"], "unrecognized arguments: --epoch 3 (see python -m muster.train --help)"),
    ],
)
def test_a_bad_argument_is_one_plain_line(argv: list[str], message: str) -> None:
    with pytest.raises(TrainError) as caught:
        TrainConfig.from_argv(argv, {})
    assert str(caught.value) == message


def test_all_bad_values_are_reported_at_once() -> None:
    words = "--epochs 0 --lr 0 --timeout 0 --step-timeout -1 --backend cuda"
    with pytest.raises(TrainError) as caught:
        TrainConfig.from_argv(words.split(), {})
    assert str(caught.value).splitlines() == [
        "--epochs must be at least 1, got 0",
        "--lr must be above 0, got 0.0",
        "--step-timeout must be 0 or more, and below 1e8, got -1.0",
        "--timeout must be above 0 and below 1e8, got 0.0",
        "--backend must be one of auto gloo nccl mpi hccl cpu:gloo,cuda:nccl, got cuda",
    ]
