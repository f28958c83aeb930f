"""The time-out of collectives: long until the first step is done, then short."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from muster.train.job.group import Job
from muster.train.job.timeouts import StepTimeout, set_timeouts
from tests.train.forked import on_hosts


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
