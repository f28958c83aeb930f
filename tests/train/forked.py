"""Ranks forked from the test itself: a group in a tenth of a second, as torch is loaded already."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed import FileStore
from torch.multiprocessing.spawn import start_processes

from muster.train.demo.config import TrainConfig
from muster.train.demo.main import train
from muster.train.job.group import Job
from muster.train.job.ranks import Ranks
from tests.train.conftest import at_free_port, environment

T = TypeVar("T")


@dataclass(frozen=True)
class Alone:
    """What a training came to in one process."""

    losses: list[float]  # of each epoch
    accuracy: float  # of the last


def train_alone(folder: Path, *options: str) -> Alone:
    """Train as `python -m muster.train OPTIONS` does, with its results in `folder`."""

    def run(group: Job) -> None:
        train(TrainConfig.from_argv([*options, "--out", str(folder)], {}), group)

    on_hosts(folder, 1, run)
    epochs = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return Alone([epoch["loss"] for epoch in epochs], epochs[-1]["accuracy"])


def on_hosts(folder: Path, hosts: int, function: Callable[[Job], T]) -> list[T]:
    """Run `function` on that many hosts of one rank each; returns what each returned, in rank order.

    They meet at a file in `folder`. What one raises is raised here.
    """
    store = folder / f"store-{os.urandom(4).hex()}"

    def run(rank: int) -> None:
        # A store that an earlier test left must not be collected: it would wait for a thread of that test.
        gc.freeze()
        torch.set_num_threads(1)  # a forked process has none of the threads that torch started before
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        joined = FileStore(str(store), hosts)
        dist.init_process_group("gloo", store=joined, rank=rank, world_size=hosts)
        names = tuple(f"host{number}" for number in range(hosts))
        group = Job(Ranks(rank, hosts, 0, 1, "env"), "gloo", torch.device("cpu"), names, joined, out=folder)
        result = function(group)
        store.with_suffix(f".{rank}").write_bytes(pickle.dumps(result))
        dist.barrier()
        dist.destroy_process_group()

    start_processes(run, nprocs=hosts, start_method="fork")  # type: ignore[no-untyped-call]
    # Written by the processes above.
    return [pickle.loads(store.with_suffix(f".{rank}").read_bytes()) for rank in range(hosts)]  # noqa: S301


def run_script(script: Path, ranks: int, *argv: str, out: Path, **variables: str) -> list[str]:
    """Run a program on that many ranks of this host, as `python SCRIPT ARGV`; returns what each printed.

    Files to keep go to `out`, which is also the current folder; `variables` are added to the environment. A
    rank that fails fails the test.
    """
    out.mkdir(parents=True, exist_ok=True)
    meeting = at_free_port() | {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}

    def be_rank(rank: int) -> None:
        torch.set_num_threads(1)
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MUSTER_OUT": str(out)}
        everything = environment(**meeting, **place, **variables)
        os.environ.clear()
        os.environ.update(everything)
        os.chdir(out)
        sys.argv, sys.path[0] = [str(script), *argv], str(script.parent)
        with (out / f"printed-{rank}").open("w") as file, contextlib.redirect_stdout(file):
            runpy.run_path(str(script), run_name="__main__")

    start_processes(be_rank, nprocs=ranks, start_method="fork")  # type: ignore[no-untyped-call]
    return [(out / f"printed-{rank}").read_text() for rank in range(ranks)]
