"""A host that is lost with its disk at any moment of a save costs no complete checkpoint.

Three hosts, each a folder and a process, train an FSDP2 model and save after each step. One host deletes its
folder and kills itself between two operations on files of a save, its own or those of its neighbour's copy.
Then three hosts, one of them new, resume: from the last step that was complete, with equal bits.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from muster.train import ShardedCheckpoints
from tests.train.forked import on_hosts
from tests.train.test_sharded_hosts import equal, load, parts, step, whole

if TYPE_CHECKING:
    from muster.train.job.group import Job

HOSTS, STEPS = 3, 4
OPERATIONS = 8  # on files, of a host in a save: three syncs and a rename for each of two ranks
LATEST = STEPS * OPERATIONS


def _die_before(operation: int, folder: Path) -> None:
    """Delete `folder` and kill this process before that operation on files."""
    left = operation

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                shutil.rmtree(folder, ignore_errors=True)
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    os.fsync = counted(os.fsync)
    Path.rename = counted(Path.rename)  # type: ignore[method-assign]


def _killed(tmp_path: Path, victim: int, operation: int) -> int:
    """Train until `victim` is gone; returns the last step after whose save every host had finished."""

    def run(group: Job) -> None:
        checkpoints = ShardedCheckpoints(group, tmp_path / f"host{group.rank}", say=lambda _: None)
        if group.rank == victim:
            _die_before(operation, tmp_path / f"host{victim}")
        mine = parts(HOSTS)
        for number in range(1, STEPS + 1):
            step(mine)
            checkpoints.save(number, mine)
            (tmp_path / f"{group.rank}-finished-{number - 1}").touch()  # save waits for the one before
        checkpoints.finish()
        (tmp_path / f"{group.rank}-finished-{STEPS}").touch()

    with pytest.raises((ProcessExitedException, ProcessRaisedException)):
        on_hosts(tmp_path, HOSTS, run)
    assert not (tmp_path / f"host{victim}").exists()
    return max(int(path.name.rpartition("-")[2]) for path in tmp_path.glob("*-finished-*"))


def _expected(tmp_path: Path) -> list[list[torch.Tensor]]:
    """Return the whole state after each step of a training that nothing interrupts."""

    def run(_: Job) -> list[list[torch.Tensor]]:
        mine, states = parts(HOSTS), []
        for _step in range(STEPS):
            step(mine)
            states.append(whole(mine))
        return states

    return on_hosts(tmp_path, HOSTS, run)[0]


@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.soak)])
def test_a_host_that_is_lost_in_a_save_costs_no_complete_checkpoint(tmp_path: Path, kills: int) -> None:
    chance = random.Random(kills)  # noqa: S311 - the same moments in every run
    states = _expected(tmp_path)
    first = OPERATIONS  # by then there is a complete step
    moments = [first + place * (LATEST - first) // kills for place in range(kills)]
    for number, moment in enumerate(moments):
        out = tmp_path / str(number)
        out.mkdir()
        victim = chance.randrange(HOSTS)
        finished = _killed(out, victim, moment)
        found, state, _ = load(out, *range(HOSTS))
        assert found is not None, (victim, moment)
        assert found >= finished
        assert equal(state, states[found - 1]), (victim, moment, found)
        shutil.rmtree(out)
