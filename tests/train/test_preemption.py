"""A signal to one rank: every rank saves the same step and ends with 75, and a restart goes on from there."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock, patch

import pytest

from muster.train.demo.config import TrainConfig
from muster.train.demo.loop import log
from muster.train.demo.main import train
from muster.train.job.preemption import PREEMPTED, Preemption
from tests.train.forked import on_hosts

if TYPE_CHECKING:
    from muster.train.job.group import Job
    from muster.train.training_loop import TrainingLoop

CONFIG = TrainConfig(epochs=2, limit=256, log_every=1)  # 4 steps in each epoch


def _interrupted(config: TrainConfig, batch: int, group: Job) -> int:
    """Train, and get a signal on rank 1 in this batch of the first epoch; returns the exit status."""

    def signalled(loop: TrainingLoop, *figures: Any) -> None:
        log(loop, *figures)
        if group.rank == 1 and loop.epoch == 0 and loop.position.batch == batch:
            os.kill(os.getpid(), signal.SIGTERM)

    with patch("muster.train.demo.loop.log", signalled), pytest.raises(SystemExit) as ended:
        train(config, group)
    return int(str(ended.value.code))


def _losses(out: Path, file: str = "steps.jsonl") -> list[float]:
    return [json.loads(line)["loss"] for line in (out / file).read_text().splitlines()]


@pytest.mark.parametrize(
    ("batch", "saved"), [(1, 2), (3, 4)]
)  # the answer comes a step later: 4 ends the epoch
def test_a_signal_ends_all_and_the_restart_is_one_run(tmp_path: Path, batch: int, saved: int) -> None:
    config = replace(CONFIG, out=tmp_path / "interrupted")
    assert on_hosts(tmp_path, 2, partial(_interrupted, config, batch)) == [PREEMPTED] * 2
    assert {path.name for path in (config.out / "checkpoints").iterdir()} == {f"step-{saved:08d}"}
    on_hosts(tmp_path, 2, lambda job: train(config, replace(job, restart=1)))
    whole = replace(CONFIG, out=tmp_path / "whole")
    on_hosts(tmp_path, 2, partial(train, whole))
    assert _losses(config.out) == _losses(whole.out)
    assert len(_losses(whole.out)) == 8
    assert _losses(config.out, "metrics.jsonl") == _losses(whole.out, "metrics.jsonl")


def test_no_rank_leaves_while_another_saves(tmp_path: Path) -> None:
    """At the end of the first, launchers end the others."""
    saved = tmp_path / "saved"

    def run(job: Job) -> tuple[bool, int]:
        with pytest.raises(SystemExit) as ended, Preemption(job) as preemption:
            os.kill(os.getpid(), signal.SIGTERM)
            while not preemption.asked():
                pass
            if job.rank == 0:
                time.sleep(0.5)  # in which the other rank would leave
                saved.touch()
            preemption.leave("saved")
        return saved.exists(), int(str(ended.value.code))

    assert on_hosts(tmp_path, 2, run) == [(True, PREEMPTED)] * 2


def _handlers(group: Job) -> list[bool]:
    before = signal.getsignal(signal.SIGTERM)
    with Preemption(group) as preemption:
        handled = signal.getsignal(signal.SIGTERM) != before
        os.kill(os.getpid(), signal.SIGUSR1)
        asked = preemption.asked()
    return [handled, asked, signal.getsignal(signal.SIGTERM) == before]


def test_the_handlers_are_there_in_the_block_alone_and_one_process_answers_at_once(tmp_path: Path) -> None:
    assert on_hosts(tmp_path, 1, _handlers) == [[True, True, True]]


def test_on_a_gpu_the_host_waits_for_the_step_before_alone(tmp_path: Path) -> None:
    """The module of a GPU is made up: reading the number of a step comes after the event of that step."""

    def run(group: Job) -> list[object]:
        said: list[object] = []
        events = iter("abc")

        def record() -> Mock:
            name = next(events)
            said.append(f"{name} recorded")
            return Mock(synchronize=lambda: said.append(f"{name} awaited"))

        with Preemption(group) as preemption:
            preemption._accelerator = Mock(stream=lambda _: nullcontext())
            preemption._stream = Mock(record_event=record)
            if group.rank == 1:
                os.kill(os.getpid(), signal.SIGUSR1)
            said += [preemption.asked(), preemption.asked()]
        return said

    expected = ["a recorded", "b recorded", "a awaited", False, True, "b awaited"]
    assert on_hosts(tmp_path, 2, run) == [expected] * 2
