"""Ranks forked from the test itself: a group in a tenth of a second, as torch is loaded already."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed import FileStore
from torch.multiprocessing.spawn import start_processes

from muster.train.job.group import Group
from muster.train.job.ranks import Ranks

T = TypeVar("T")


def on_hosts(folder: Path, hosts: int, function: Callable[[Group], T]) -> list[T]:
    """Run `function` on that many hosts of one rank each; returns what each returned, in rank order.

    They meet at a file in `folder`. What one raises is raised here.
    """
    store = folder / f"store-{os.urandom(4).hex()}"

    def run(rank: int) -> None:
        torch.set_num_threads(1)  # a forked process has none of the threads that torch started before
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        joined = FileStore(str(store), hosts)
        dist.init_process_group("gloo", store=joined, rank=rank, world_size=hosts)
        names = tuple(f"host{number}" for number in range(hosts))
        group = Group(Ranks(rank, hosts, 0, 1, "env"), "gloo", torch.device("cpu"), names, joined)
        result = function(group)
        store.with_suffix(f".{rank}").write_bytes(pickle.dumps(result))
        dist.barrier()
        dist.destroy_process_group()

    start_processes(run, nprocs=hosts, start_method="fork")  # type: ignore[no-untyped-call]
    # Written by the processes above.
    return [pickle.loads(store.with_suffix(f".{rank}").read_bytes()) for rank in range(hosts)]  # noqa: S301
