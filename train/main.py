"""Train a network on real handwritten digits, in one process or on a cluster.

    python -m muster.train                                     # alone
    mpirun -np 4 python -m muster.train --epochs 30            # four ranks, started by Open MPI
    torchrun --nproc-per-node 4 -m muster.train                # four ranks, started by torchrun
    python -m muster.train --spawn 4                           # four ranks, started by themselves
    python -m muster.train --resume auto --epochs 30    # on from the newest checkpoint

With the same options the loss is the same at every number of ranks. This file is the table of contents:
config.py has what can be chosen, ranks.py who this process is, group.py how the ranks work together, data/
what they train on, sync/ how their gradients become one, trainer.py a step of the training, loop.py the whole
of it, checkpoint/ how none of it is lost, failure.py how a job ends when something goes wrong.
"""

from __future__ import annotations

import os
import sys
import time

import torch

from .config import TrainConfig
from .data import load
from .failure import fail_together, keep_records_in
from .group import Group, process_group
from .hardware import be_deterministic, use_fair_share_of_cores
from .loop import fit
from .outputs import log_to
from .progress import Progress
from .ranks import Ranks, remark
from .report import headline, verdict
from .spawn import spawn


def main() -> None:
    """Run the program; failure.py says with which exit status it ends."""
    with fail_together():
        config = TrainConfig.from_argv(sys.argv[1:], os.environ)
        if config.spawn:
            sys.exit(spawn(run_rank, config.spawn, config))
        run_rank(Ranks.from_env(os.environ, config.launcher), config)


def run_rank(ranks: Ranks, config: TrainConfig) -> None:
    """Be one rank of the job, from joining the others to leaving them."""
    with fail_together():
        keep_records_in(config.out, ranks.rank)
        use_fair_share_of_cores(ranks)
        if config.deterministic:
            be_deterministic()
        with process_group(ranks, backend=config.backend, init=config.init, timeout=config.patience) as group:
            train(config, group)


def train(config: TrainConfig, group: Group) -> None:
    """Train, and say what runs and what came of it."""
    started = time.perf_counter()
    progress = Progress(group.ranks, os.environ)
    if line := remark(os.environ, group.ranks):
        progress.line(line)
    if config.rank_logs:
        log_to(config.out / "logs", group)
    samples, held_out = load(config.data, getattr(torch, config.dtype), group.device)
    samples = samples.at(slice(config.limit or None))
    name = "digits" if config.data == "digits" else "samples"
    progress.line(
        f"{headline(group)}, global batch {config.batch_size}, "
        f"{len(samples)} training and {len(held_out)} held-out {name}"
    )
    accuracy = fit(config, group, samples, held_out, progress)
    progress.line(verdict(group, accuracy, time.perf_counter() - started))
