"""What a group does without an answer of its key-value store."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from muster.train.mpi_backend.direct import MPI, all_reduce_sum
from muster.train.mpi_backend.process_group import MpiProcessGroup
from muster.train.mpi_backend.watchdog import Watched, watchdog
from tests.train.mpi_checks.values import fold, me, of_all, of_rank, same, world


class Unreachable:
    """A store that answers once, when the group is made."""

    def __init__(self) -> None:
        self.asked = 0
        self.failed = threading.Event()

    def check(self, keys: list[str]) -> bool:
        return self._ask()

    def add(self, key: str, value: int) -> Any:
        return self._ask()

    set = add

    def _ask(self) -> bool:
        self.asked += 1
        if self.asked > 1:
            self.failed.set()
            raise RuntimeError("Connection reset by peer")
        return False


def check_a_group_outlives_its_store() -> None:
    store = Unreachable()
    group = MpiProcessGroup(MPI.COMM_WORLD.Dup(), store, timedelta(seconds=100), "outlives")
    tensor = torch.ones(2)
    if me() == 0:
        work = group.allreduce([tensor])
        assert store.failed.wait(100), "nobody asked the store"
        group.set_timeout(timedelta(seconds=100))
        _look_again()
        dist.barrier()
        work.wait()
    else:
        dist.barrier()
        group.allreduce([tensor]).wait()
    same(tensor, torch.full((2,), float(world())))
    group.shutdown()


def _look_again() -> None:
    """Return when the watchdog has looked at all groups twice more; it is asked through one of its own."""
    seen = threading.Semaphore(0)

    class Queue:
        name, begun, broken = "looked at", 0, None

        def look(self) -> None:
            seen.release()

    queue: Any = Queue()
    watchdog.watch(Watched(queue, 0, 1, None))
    for _ in range(2):
        assert seen.acquire(timeout=100), "the watchdog does not look any more"
    watchdog.forget(queue)


def check_without_a_process_group() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int64):
        tensor = of_rank(me(), dtype)
        all_reduce_sum(MPI.COMM_WORLD, tensor)
        same(tensor, fold(torch.add, of_all(dtype)), dtype)
