"""A training that continues from a checkpoint is the same one, from any step, at any number of ranks."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
import torch
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from muster.train.checkpoint import files
from muster.train.checkpoint.checkpoints import Checkpoints
from muster.train.checkpoint.core import FOLDER
from muster.train.demo.config import TrainConfig
from muster.train.demo.main import train
from muster.train.job import lock
from muster.train.job.failure import TrainError
from tests.train.forked import on_hosts
from tests.waiting import wait_until

if TYPE_CHECKING:
    from muster.train.job.group import Job

# 193 = 3 * 64 + 1: four steps an epoch, so every third one is at another place in its epoch.
SHORT = ("--limit", "193", "--epochs", "3", "--save-every", "3", "--keep", "100")


def _train(folder: Path, ranks: int, *options: str, shared: bool = True, restart: int = 0) -> None:
    """Train on hosts of one rank each, with a folder they share or one each: `folder`/hostn."""

    def run(group: Job) -> None:
        out = folder if shared else folder / f"host{group.rank}"
        config = TrainConfig.from_argv([*SHORT, "--out", str(out), *options], {})
        train(config, replace(group, restart=restart))

    folder.mkdir(parents=True, exist_ok=True)
    on_hosts(folder, ranks, run)


def _losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _last(folder: Path) -> dict[str, Any]:
    return files.load(files.stored(folder / FOLDER)[0])


def _back_to(step: int, folder: Path, copy: Path) -> None:
    """Make `copy` as `folder` was when step `step` was saved, as if the job had been killed then."""
    shutil.copytree(folder, copy)
    for path in files.stored(copy / FOLDER):
        if files.step_of(path) > step:
            shutil.rmtree(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks that nothing interrupted: 12 steps, saved after 3, 4, 6, 8, 9 and 12."""
    folder = tmp_path_factory.mktemp("whole")
    _train(folder, 2)
    assert [files.step_of(path) for path in files.stored(folder / FOLDER)] == [12, 9, 8, 6, 4, 3]
    return folder


@pytest.mark.parametrize("step", [3, 4, *(pytest.param(step, marks=pytest.mark.soak) for step in (6, 9))])
def test_a_resumed_training_is_equal_bit_by_bit(whole: Path, tmp_path: Path, step: int) -> None:
    again = tmp_path / "again"
    _back_to(step, whole, again)
    _train(again, 2, "--resume", "auto")
    assert _losses(again) == _losses(whole)
    for part in ("model", "optimizer", "losses", "position", "random"):
        assert _plain(_last(again)[part]) == _plain(_last(whole)[part]), part


def _plain(value: Any) -> Any:
    """Return `value` with its tensors as lists, which can be compared; float32 to float is exact."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def test_a_resumed_epochs_rate(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that moves by a second whenever it is read, the rate is the number of samples."""
    again = tmp_path / "again"
    _back_to(6, whole, again)  # two of four batches of the second epoch are done
    clock = Mock(perf_counter=count().__next__, time=lambda: 1.7e9)
    monkeypatch.setattr("muster.train.demo.loop.time", clock)
    _train(again, 1, "--resume", "auto")
    lines = (again / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["samples_per_second"] for line in lines[1:]] == [193 - 2 * 64, 193]


@pytest.mark.parametrize("ranks", [1, 3])
def test_another_number_of_ranks_has_the_same_curve(whole: Path, tmp_path: Path, ranks: int) -> None:
    again = tmp_path / "again"
    _back_to(6, whole, again)
    _train(again, ranks, "--resume", "auto")
    assert _losses(again) == pytest.approx(_losses(whole), abs=1e-5)


def test_hosts_with_disks_of_their_own_continue_together(whole: Path, tmp_path: Path) -> None:
    _back_to(9, whole, tmp_path / "host0")
    _back_to(6, whole, tmp_path / "host1")
    _train(tmp_path, 3, "--resume", "auto", shared=False)  # and host2 is new
    assert _losses(tmp_path / "host0") == pytest.approx(_losses(whole), abs=1e-5)
    for host in ("host0", "host1", "host2"):
        assert _last(tmp_path / host)["position"]["step"] == 12


def test_a_killed_job_that_the_driver_starts_again_continues(
    whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed, pytest.raises((ProcessExitedException, ProcessRaisedException)):
        killed.setattr(Checkpoints, "save", _save_and_kill_rank_1_after_step_4(Checkpoints.save))
        _train(tmp_path, 2)
    assert 4 < files.step_of(files.stored(tmp_path / FOLDER)[0]) < 12
    _train(tmp_path, 2, restart=1)
    assert f"resumed from {tmp_path}/checkpoints/step-" in capfd.readouterr().out
    assert _losses(tmp_path) == _losses(whole)
    assert _plain(_last(tmp_path)["model"]) == _plain(_last(whole)["model"])


def _save_and_kill_rank_1_after_step_4(save: Callable[..., None]) -> Callable[..., None]:
    def save_and_kill(checkpoints: Checkpoints, step: int, state: dict[str, Any]) -> None:
        save(checkpoints, step, state)
        if checkpoints.group.rank == 1 and step > 4:
            # Rank 0 writes it.
            wait_until(files.path_of(checkpoints.folder, step).exists, "the checkpoint", pause=0.001)
            os.kill(os.getpid(), signal.SIGKILL)

    return save_and_kill


def test_nothing_to_resume_is_an_error_or_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    nothing = f"no host has a complete checkpoint in {tmp_path}/checkpoints"
    with pytest.raises(Exception, match=nothing) as error:
        _train(tmp_path, 1, "--resume", "auto", "--epochs", "1")
    assert "to start at step 1, leave out resume" in str(error.value)
    _train(tmp_path, 1, "--resume", "if-any", "--epochs", "1")
    said = capfd.readouterr().out
    assert nothing in said
    assert "the training starts at step 1" in said
    assert len(_losses(tmp_path)) == 1


def test_a_new_run_in_an_old_folder_sets_its_checkpoints_aside(
    whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    again = tmp_path / "again"
    _back_to(12, whole, again)
    _train(again, 1, "--epochs", "1")
    assert f"earlier checkpoints set aside in {again}/checkpoints.1" in capfd.readouterr().out
    assert _last(again)["position"]["epoch"] == 1
    assert files.step_of(files.stored(again / "checkpoints.1")[0]) == 12


def test_metrics_are_set_aside_too(whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also where another run's checkpoint is continued: this folder's metrics are not of that training."""
    other = tmp_path / "other"
    _back_to(8, whole, other)
    again = tmp_path / "again"
    shutil.copytree(whole, again)
    _train(again, 1, "--resume", str(other))
    assert f"earlier metrics set aside in {again}/metrics.1.jsonl" in capfd.readouterr().out
    assert len(_losses(again)) == 1  # of the third epoch alone
    assert (again / "metrics.1.jsonl").read_text() == (whole / "metrics.jsonl").read_text()


def test_another_training_cannot_be_continued(whole: Path, tmp_path: Path) -> None:
    def run(group: Job) -> str:
        options = ["--resume", str(whole), "--seed", "1", "--batch-size", "32", "--limit", "193"]
        with pytest.raises(TrainError) as caught:
            train(TrainConfig.from_argv([*options, "--out", str(tmp_path / "out")], {}), group)
        return str(caught.value)

    (said,) = on_hosts(tmp_path, 1, run)
    assert said.splitlines() == [
        "the checkpoint is of a training with --seed 0, not 1; continue with the same",
        "the checkpoint is of a training with --batch-size 64, not 32; continue with the same",
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        pytest.param(("--seed", "1"), "a training with --seed 0, not 1", id="another training"),
        pytest.param((), "the checkpoint is of another network", id="another network"),
    ],
)
def test_a_resume_that_is_refused_changes_nothing(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], says: str
) -> None:
    """Two hosts with checkpoints of their own, and the other run's is on the second one alone."""
    for host in ("host0", "host1"):
        _back_to(9, whole, tmp_path / host)
    other = tmp_path / "host1" / "other"
    shutil.copytree(whole, other)
    before = _files(tmp_path)
    if not options:
        monkeypatch.setattr("muster.train.demo.trainer.image_network", lambda *_: torch.nn.Linear(8, 10))

    def run(group: Job) -> None:
        chosen = other if group.rank == 1 else tmp_path / "nowhere"
        out = ("--out", str(tmp_path / f"host{group.rank}"), "--resume", str(chosen))
        with pytest.raises(TrainError, match=says):
            train(TrainConfig.from_argv([*SHORT, *out, *options], {}), group)

    on_hosts(tmp_path, 2, run)
    assert _files(tmp_path) == before


def _files(folder: Path) -> dict[Path, bytes]:
    """What the folders of the hosts hold."""
    return {
        path: path.read_bytes()
        for path in sorted(folder.glob("host*/**/*"))
        if path.is_file() and path.name != lock.FILE
    }


def test_the_resumed_file_is_closed(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that is mapped from it would keep its space on the disk after it is removed."""
    again = tmp_path / "again"
    _back_to(6, whole, again)
    mapped: list[bool] = []
    monkeypatch.setattr(
        "muster.train.demo.loop.report",
        lambda *_: mapped.append(files.STATE in Path("/proc/self/maps").read_text()),
    )

    def run(group: Job) -> list[bool]:
        options = (*SHORT, "--out", str(again), "--resume", "auto", "--keep", "1")
        train(TrainConfig.from_argv(options, {}), group)
        return mapped

    assert on_hosts(tmp_path, 1, run) == [[False, False]]


@pytest.mark.parametrize("keep", ["1", "2"])
def test_the_newest_are_kept(tmp_path: Path, keep: str) -> None:
    _train(tmp_path, 1, "--epochs", "1", "--save-every", "1", "--keep", keep)
    assert [files.step_of(path) for path in files.stored(tmp_path / FOLDER)] == [4, 3][: int(keep)]
    assert not list((tmp_path / FOLDER).glob(".*"))
