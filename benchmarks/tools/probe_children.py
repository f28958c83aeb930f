"""Measures cells in child processes: a cell that hangs or kills its process costs only itself.

Each rank has a child, and the children form a group that goes through the cells. When a child dies or does
not answer, all children are replaced, and the new ones continue after that cell. They are forked from a
server that has only imported torch: that takes a tenth of a second instead of seconds.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore

from muster.deploy.features.bench.programs.outcomes import BROKEN, together
from muster.train.job.backend import gpu_number
from muster.train.job.group import Job
from muster.train.job.ranks import Ranks
from muster.train.job.rendezvous import address_of
from muster.train.job.values import decoded, encoded

from .probe_cells import DIES, HANGS, Cell, Measured, measure

Measure = Callable[[Cell, int, int, int], tuple[str, str]]
PATIENCE = timedelta(seconds=5)  # for a cell; one that works takes milliseconds
STARTING = timedelta(seconds=60)  # to import torch and join


@dataclass(frozen=True, slots=True)
class Child:
    """What a child needs to be one rank of its group."""

    backend: str
    ranks: Ranks
    address: str
    port: int
    attempt: int
    patience: timedelta
    measure: Measure


def measure_apart(
    group: Job,
    backend: str,
    cells: list[Cell],
    *,
    patience: timedelta = PATIENCE,
    measure: Measure = measure,
) -> list[Measured]:
    """Measure `cells` under `backend`, which need not be that of `group`; the same list on every rank."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.tools.probe_children"])
    store = None
    if group.rank == 0:
        store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, use_libuv=False)
    known = os.environ.get("MASTER_ADDR") or address_of(group.ranks)
    address, port = group.broadcast((known, store.port if store else 0), tuple[str, int])
    done: list[Measured] = []
    attempt = 0
    while len(done) < len(cells):
        child = Child(backend, group.ranks, address, port, attempt, patience, measure)
        done += _one_attempt(context, group, child, cells[len(done) :])
        attempt += 1
    return done


def _one_attempt(context: ForkServerContext, group: Job, child: Child, cells: list[Cell]) -> list[Measured]:
    """Run new children; returns what they measured, and the cell that ended them if one did."""
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=go_through, args=(theirs, child, cells), daemon=True)
    process.start()
    theirs.close()
    outcomes = _listen(mine, child.patience)
    process.join(child.patience.total_seconds())  # gives a child that died time to be reported as dead
    died = process.exitcode is not None and process.exitcode < 0
    process.kill()
    process.join()
    signals = group.all_gather(-(process.exitcode or 0) if died else 0, int)
    seen = group.all_gather(outcomes, list[tuple[str, str]])
    outcomes = max(seen, key=len)  # the same on all ranks; slow ranks saw fewer
    measured = [Measured(cell, *outcome) for cell, outcome in zip(cells, outcomes, strict=False)]
    if len(measured) < len(cells) and not (measured and measured[-1].outcome == BROKEN):
        measured.append(_culprit(cells[len(measured)], signals, child.patience))
    return measured


def _culprit(cell: Cell, signals: list[int], patience: timedelta) -> Measured:
    for rank, number in enumerate(signals):
        if number:
            return Measured(cell, DIES, f"rank {rank}: killed by signal {number}")
    return Measured(cell, HANGS, f"no answer within {patience.seconds} s")


def _listen(pipe: Connection, of_cell: timedelta) -> list[tuple[str, str]]:
    """Return the outcomes that the child sends, until it ends or takes too long."""
    outcomes: list[tuple[str, str]] = []
    patience = STARTING
    try:
        while pipe.poll(patience.total_seconds()):
            message = pipe.recv()
            if message is not None:
                outcomes.append(message)
            patience = 2 * of_cell  # a child whose peer never comes gives up before
    except EOFError:
        pass
    return outcomes


def go_through(pipe: Connection, child: Child, cells: list[Cell]) -> None:
    """Be one rank of the children, until all cells are done or one leaves the ranks out of step."""
    torch.set_num_threads(1)
    if "cuda" in {cell.device for cell in cells}:
        torch.cuda.set_device(gpu_number(child.ranks.local_rank))
    server = TCPStore(child.address, child.port, None, False, STARTING, use_libuv=False)
    store = PrefixStore(f"{child.backend}-{child.attempt}", server)
    rank, size = child.ranks.rank, child.ranks.world_size
    dist.init_process_group(child.backend, store=store, rank=rank, world_size=size, timeout=STARTING)
    pipe.send(None)
    server.set_timeout(child.patience)
    for number, cell in enumerate(cells):
        measured = child.measure(cell, rank, size, child.ranks.local_rank)
        if store.check([f"{number}/given up"]):
            return  # another child has left: this rank only saw the consequence
        store.set(f"{number}/{rank}", encoded(measured))
        try:  # over the store, as the group may be out of step now
            texts = [store.get(f"{number}/{other}") for other in range(size)]
        except dist.DistStoreError:
            store.set(f"{number}/given up", "")
            return
        results = [decoded(text, tuple[str, str], f"rank {other}") for other, text in enumerate(texts)]
        outcome, message = together(results)
        pipe.send((outcome, message))
        if outcome == BROKEN:
            return
