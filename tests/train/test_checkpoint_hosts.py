"""Hosts with disks of their own agree on the newest complete checkpoint, and send it around."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from muster.train.checkpoint import files, spread
from muster.train.checkpoint.checkpoints import Checkpoints
from muster.train.checkpoint.core import Finding, Good
from muster.train.checkpoint.sharded import ShardedCheckpoints
from muster.train.job.failure import TrainError
from muster.train.job.group import Job
from tests.train.forked import on_hosts

KEEP = 3


def _state(step: int) -> dict[str, Any]:
    return {"model": torch.full((1000,), float(step)), "step": step}


def _have(out: Path, *steps: int) -> Path:
    """Give the host of `out` checkpoints of these steps; returns their folder."""
    for step in steps:
        files.save(out / "checkpoints", step, _state(step))
    return out / "checkpoints"


def _damage(folder: Path, step: int) -> None:
    os.truncate(files.path_of(folder, step) / files.STATE, 99)


def _restart(tmp_path: Path, hosts: int, resume: Path | None = None) -> tuple[int | None, str]:
    """Return the step from which all hosts continue, and what rank 0 says; host n has the folder hostn."""

    def run(group: Job) -> tuple[int | None, str]:
        said: list[str] = []
        out = tmp_path / f"host{group.rank}"
        checkpoints = Checkpoints(group, out, keep=KEEP, say=said.append)
        states = _state(0)
        if (step := checkpoints.load(states, resume)) is None:
            return None, "\n".join(said)
        assert torch.all(states["model"] == states["step"])
        assert step == states["step"]
        return states["step"], "\n".join(said)

    results = on_hosts(tmp_path, hosts, run)
    assert len({step for step, _ in results}) == 1, results
    return results[0]


def _steps(folder: Path) -> list[int]:
    return [files.step_of(path) for path in files.stored(folder)]


def test_a_host_that_lacks_the_newest_gets_it(tmp_path: Path) -> None:
    ahead, behind = _have(tmp_path / "host0", 1, 2, 3), _have(tmp_path / "host1", 1, 2)
    step, said = _restart(tmp_path, 2)
    assert step == 3
    assert "host1: got the checkpoint of step 3" in said
    assert _steps(behind) == [3, 2, 1]
    assert files.verify(files.path_of(behind, 3)) == files.verify(files.path_of(ahead, 3))


def test_the_newest_goes_in_pieces_to_new_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "PIECE", 1000)  # a handful, the last one short
    _have(tmp_path / "host1", 7)
    assert _restart(tmp_path, 4)[0] == 7
    assert [_steps(tmp_path / f"host{number}" / "checkpoints") for number in range(4)] == [[7]] * 4


def test_a_damaged_newest_is_named_and_replaced_by_the_other_hosts(tmp_path: Path) -> None:
    damaged = _have(tmp_path / "host0", 1, 2)
    _have(tmp_path / "host1", 1, 2)
    _damage(damaged, 2)
    step, said = _restart(tmp_path, 2)
    assert step == 2
    assert f"host0: {damaged}/step-00000002/state.pt does not have the checksum" in said
    files.verify(files.path_of(damaged, 2))


def test_a_newest_that_is_damaged_everywhere_makes_way_for_the_next_older(tmp_path: Path) -> None:
    folders = [_have(tmp_path / f"host{number}", 1, 2) for number in range(2)]
    for folder in folders:
        _damage(folder, 2)
    step, said = _restart(tmp_path, 2)
    assert step == 1
    assert said.count("does not have the checksum") == 2
    assert [_steps(folder) for folder in folders] == [[1], [1]]
    assert all((folder.with_name("checkpoints.1") / "step-00000002").exists() for folder in folders)


def test_checkpoints_of_one_step_that_differ_become_one(tmp_path: Path) -> None:
    first = _have(tmp_path / "host0", 5)
    other = tmp_path / "host1" / "checkpoints"
    files.save(other, 5, {**_state(5), "more": 1})
    assert _restart(tmp_path, 2)[0] == 5
    assert files.verify(files.path_of(other, 5)) == files.verify(files.path_of(first, 5))


def test_hosts_without_any_start_afresh(tmp_path: Path) -> None:
    step, said = _restart(tmp_path, 2)
    assert step is None
    assert "no host has a complete checkpoint in" in said


def test_the_checkpoint_of_another_run_need_be_on_one_host_only(tmp_path: Path) -> None:
    other = _have(tmp_path / "elsewhere", 4)
    mine = _have(tmp_path / "host0", 9)
    for meant in (other, other / "step-00000004", tmp_path / "elsewhere"):
        assert _restart(tmp_path, 2, resume=meant)[0] == 4
    assert _steps(mine.with_name("checkpoints.1")) == [9]  # not lost, and not taken for this run's


def test_no_complete_checkpoint_where_one_was_asked_for_is_an_error(tmp_path: Path) -> None:
    other = _have(tmp_path / "elsewhere", 4)
    _damage(other, 4)

    def run(group: Job) -> str:
        checkpoints = Checkpoints(group, tmp_path / f"host{group.rank}", keep=1, say=lambda _: None)
        with pytest.raises(TrainError) as caught:
            checkpoints.load(_state(0), other)
        return str(caught.value)

    (said,) = set(on_hosts(tmp_path, 2, run))
    assert said.startswith(f"nothing to resume from: no host has a complete checkpoint in {other}\nhost0: ")


def test_a_shared_folder_has_one_writer_and_others_one_each(tmp_path: Path) -> None:
    """Ranks 0 and 1 share a folder under two names, as hosts may; rank 2 has its own."""
    (tmp_path / "host0").mkdir()
    (tmp_path / "host1").symlink_to(tmp_path / "host0")

    def run(group: Job) -> tuple[bool, list[int]]:
        checkpoints = Checkpoints(group, tmp_path / f"host{group.rank}", keep=KEEP, say=lambda _: None)
        checkpoints.save(1, _state(1))
        return checkpoints.leads, checkpoints.disks.every

    assert on_hosts(tmp_path, 3, run) == [(True, [0, 2]), (False, [0, 2]), (True, [0, 2])]
    assert sorted(path.name for path in tmp_path.glob("host*/checkpoints/*")) == ["step-00000001"] * 3
    shutil.rmtree(tmp_path / "host0" / "checkpoints")
    assert _restart(tmp_path, 3)[0] == 1


def test_a_folder_that_cannot_be_made_names_host_and_folder(tmp_path: Path) -> None:
    (tmp_path / "host0").touch()

    def run(group: Job) -> str:
        with pytest.raises(TrainError) as caught:
            Checkpoints(group, tmp_path / "host0", keep=1, say=lambda _: None)
        return str(caught.value)

    (said,) = on_hosts(tmp_path, 1, run)
    assert said.startswith(f"host0: cannot write to {tmp_path}/host0/checkpoints: Not a directory")


WHOLE, SHARDED = "Checkpoints", "ShardedCheckpoints"


@pytest.mark.parametrize(
    ("kind", "step", "name", "says"),
    [
        (WHOLE, 1, "0000-of-0002", "step 1 has a file '0000-of-0002', as no Checkpoints can have"),
        (WHOLE, -1, "0000-of-0001", "there is a step -1, as no Checkpoints can have"),
        (SHARDED, 1, f"0000-of-{'9' * 5000}", "step 1 has a file '0000-of-9"),
        (SHARDED, 10**4000, "0000-of-0001", "there is a step 1000"),
    ],
)
def test_odd_file_names_are_an_error(tmp_path: Path, kind: str, step: int, name: str, says: str) -> None:
    def run(group: Job) -> str:
        checkpoints = {WHOLE: Checkpoints, SHARDED: ShardedCheckpoints}[kind](group, tmp_path / "out")
        finding = Finding([Good(name, "save")] if group.rank else [], [])
        with pytest.raises(TrainError) as caught:
            checkpoints._newest_of([step] if group.rank else [], lambda _: finding, lambda _: None)
        return str(caught.value)

    (said,) = set(on_hosts(tmp_path, 2, run))
    assert said.startswith(f"rank 1 (host1) says that {says}")
