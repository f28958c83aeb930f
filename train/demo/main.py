"""Train a network on real handwritten digits, in one process or on a cluster.

    python -m muster.train                              # one process
    mpirun -np 4 python -m muster.train --epochs 30     # four ranks, started by Open MPI
    torchrun --nproc-per-node 4 -m muster.train         # four ranks, started by torchrun
    python -m muster.train --spawn 4                    # four ranks that this process starts
    python -m muster.train --resume auto --epochs 30    # continue from the newest checkpoint

With the same options the loss is the same at every number of ranks. Read on in config.py (the options),
datasets.py and image_network.py, trainer.py (a step) and loop.py; then the library, in the folders beside
demo/ (docs/train.md).
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from datetime import timedelta
from functools import partial

from ..job.failure import fail_together
from ..job.group import Job, shared_folder
from ..job.ranks import Ranks, remark
from ..job.run import be_rank
from ..job.spawn import spawn
from ..reporting.terminal import Terminal, headline, verdict
from .config import TrainConfig
from .datasets import load
from .loop import fit


def main() -> None:
    """Run the program; job/failure.py decides the exit status."""
    with fail_together():
        config = TrainConfig.from_argv(sys.argv[1:], os.environ)
        os.environ["MUSTER_OUT"] = str(config.out)
        options = {
            "backend": config.backend,
            "init": config.init,
            "timeout": config.patience,
            "step_timeout": timedelta(seconds=config.step_timeout) if config.step_timeout else None,
        }
        work = partial(train, config)
        if config.spawn:
            sys.exit(spawn(be_rank, config.spawn, work, (), options))
        be_rank(Ranks.from_env(os.environ, config.launcher), work, (), options)


def train(config: TrainConfig, job: Job) -> None:
    """Train, and print what runs and the result."""
    job = replace(job, out=shared_folder(job, config.out))
    started = time.perf_counter()
    terminal = Terminal(job.ranks)
    if line := remark(os.environ, job.ranks):
        terminal.line(line)
    samples, held_out = load(config.data, job.device)
    samples = samples.at(slice(config.limit or None))
    name = "digits" if config.data == "digits" else "samples"
    terminal.line(
        f"{headline(job)}, global batch {config.batch_size}, "
        f"{len(samples)} training and {len(held_out)} held-out {name}"
    )
    accuracy = fit(config, job, samples, held_out, terminal)
    terminal.line(verdict(job, accuracy, time.perf_counter() - started))
