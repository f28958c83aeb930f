"""While one rank works longer than a collective may wait, the others wait for it."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore, Store
from torch.distributed import distributed_c10d as c10d

from muster.train.checkpoint import files
from muster.train.checkpoint.checkpoints import Checkpoints
from muster.train.job import long_work
from muster.train.job.failure import TrainError
from muster.train.job.group import Job
from muster.train.job.long_work import others_wait
from muster.train.job.timeouts import StepTimeout, set_timeouts
from tests.train.forked import on_hosts

if TYPE_CHECKING:
    from muster.train.job.group import Job

TIMEOUT = timedelta(seconds=10)


def test_nobody_goes_on_before_the_last_has_done_its_work(tmp_path: Path) -> None:
    def run(group: Job) -> list[bool]:
        seen = []
        for number in range(3):
            done = tmp_path / f"done-{number}"
            with others_wait(group):
                if group.rank == number:
                    group.store.wait([f"others-{number}"], timedelta(seconds=100))
                    time.sleep(0.1)  # rank 2 would be gone by now, if it did not wait
                    done.touch()
                elif group.rank == (number + 1) % 3:
                    group.store.set(f"others-{number}", "")
            seen.append(done.exists())
        return seen

    assert on_hosts(tmp_path, 3, run) == [[True, True, True]] * 3


def test_a_checkpoint_is_there_after_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = files.save

    def slowly(folder: Path, step: int, state: dict[str, object]) -> Path:
        time.sleep(0.2)
        return write(folder, step, state)

    monkeypatch.setattr(files, "save", slowly)

    def run(group: Job) -> bool:
        checkpoints = Checkpoints(group, tmp_path, keep=1, say=lambda _: None)
        checkpoints.save(7, {"model": torch.ones(3)})
        return files.path_of(checkpoints.folder, 7).exists()

    assert on_hosts(tmp_path, 2, run) == [True, True]


def test_rank_0_with_the_store_stays_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = long_work._wait

    def late(store: Store, name: str, timeout: timedelta) -> None:
        time.sleep(0.3)
        wait(store, name, timeout)
        (tmp_path / "the others have asked").touch()

    def run(group: Job) -> bool:
        if group.rank == 1:
            monkeypatch.setattr(long_work, "_wait", late)
        with others_wait(group):
            pass
        return (tmp_path / "the others have asked").exists()

    assert on_hosts(tmp_path, 2, run) == [True, True]


def _clock(monkeypatch: pytest.MonkeyPatch, store: HashStore, beats_until: float) -> Mock:
    """Replace time in long_work: a nap takes 1 s, and until `beats_until` another rank counts up in it."""
    now = [0.0]

    def nap(_: float) -> None:
        now[0] += 1
        if now[0] < beats_until:
            store.add("work/alive", 1)
        elif beats_until == 50:
            store.set("work/all-done", "")

    clock = Mock(monotonic=lambda: now[0], sleep=nap, now=now)
    monkeypatch.setattr(long_work, "time", clock)
    return clock


def test_work_may_take_any_multiple_of_the_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    clock = _clock(monkeypatch, store, 50)
    long_work._wait(store, "work", TIMEOUT)
    assert clock.now == [50]


def test_ranks_without_a_sign_of_life_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    clock = _clock(monkeypatch, store, 20)
    with pytest.raises(TrainError, match="sign of life for 10 s"):
        long_work._wait(store, "work", TIMEOUT)
    assert 28 < clock.now[0] < 32


def test_a_rank_that_works_shows_that_it_lives(tmp_path: Path) -> None:
    def run(group: Job) -> int:
        group = replace(group, timeout=timedelta(seconds=1))
        with others_wait(group):
            while group.store.add("muster/long-work/0/alive", 0) < 3:
                time.sleep(0.001)
        return next(group.long_works)

    assert on_hosts(tmp_path, 1, run) == [1]


# -- the time-out of collectives: long until the first step is done, then short --


def _collectives(group: Job) -> list[str]:
    """Be late on rank 1 before and after the first step; returns how each all_reduce of rank 0 ended."""
    group = replace(group, step_timeout=StepTimeout(timedelta(seconds=0.3)))
    ends = []
    for late in (1.0, 3.0):
        if group.rank == 1:
            time.sleep(late)
        try:
            dist.all_reduce(torch.ones(1))
            ends.append("done")
        except RuntimeError as error:
            ends.append("timed out" if "Timed out" in str(error) else str(error))
        if late == 1.0:
            for _ in range(2):
                group.first_step_done()
    if group.rank == 0:  # the other rank has its answer or an error, and the test's own barrier works again
        time.sleep(4)
    dist.destroy_process_group()
    store = dist.PrefixStore("end", group.store)
    dist.init_process_group("gloo", store=store, rank=group.rank, world_size=group.world_size)
    return ends


def test_a_late_rank_is_waited_for_before_the_first_step_is_done_and_not_after(tmp_path: Path) -> None:
    ends = on_hosts(tmp_path, 2, _collectives)
    assert ends[0] == ["done", "timed out"]


def test_without_a_time_out_for_steps_nothing_is_set() -> None:
    barrier = Mock()
    StepTimeout().first_step_done(barrier)
    barrier.assert_not_called()


def test_every_group_gets_it_and_the_mpi_backend_by_its_own_method(monkeypatch: pytest.MonkeyPatch) -> None:
    of_torch, of_python = Mock(spec=[]), Mock(spec=["_set_default_timeout"])
    set_one = Mock()
    monkeypatch.setattr(c10d, "_world", Mock(pg_map={of_torch: 1, of_python: 2}))
    monkeypatch.setattr(c10d, "_set_pg_timeout", set_one)
    set_timeouts(timedelta(seconds=7))
    of_python._set_default_timeout.assert_called_once_with(timedelta(seconds=7))
    set_one.assert_called_once_with(timedelta(seconds=7), of_torch)
