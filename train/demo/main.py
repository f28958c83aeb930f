"""Train a network on real handwritten digits, in one process or on a cluster.

    python -m muster.train                              # one process
    mpirun -np 4 python -m muster.train --epochs 30     # four ranks, started by Open MPI
    torchrun --nproc-per-node 4 -m muster.train         # four ranks, started by torchrun
    python -m muster.train --spawn 4                    # four ranks that this process starts
    python -m muster.train --resume auto --epochs 30    # continue from the newest checkpoint

With the same options the loss is the same at every number of ranks. Read on in this order:

    demo/config.py      the options
    demo/datasets/      what to train on; demo/image_network.py, the network
    demo/trainer.py     a step of the training; demo/loop.py all of it

and then the library, in the folders beside demo/:

    job/           a rank's life in a job: who it is, where the ranks meet, how the job ends
    data/          which samples a rank gets
    checkpoint/    checkpoints that cannot be lost
    reporting/     what a run shows and writes
    mpi_backend/   a backend of torch.distributed on MPI
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from functools import partial

import torch
from torch.nn.functional import cross_entropy

from ..job.failure import fail_together, keep_records_in
from ..job.group import Job, process_group, shared_folder
from ..job.hardware import be_deterministic, use_fair_share_of_cores
from ..job.ranks import Ranks, remark
from ..job.spawn import spawn
from ..reporting.terminal import Terminal, headline, verdict
from .config import TrainConfig
from .datasets import load
from .datasets.samples import Samples
from .image_network import image_network
from .loop import fit, learning_rate
from .trainer import Trainer


def main() -> None:
    """Run the program; job/failure.py decides the exit status."""
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
        with process_group(
            ranks,
            backend=config.backend,
            init=config.init,
            timeout=config.patience,
            step_timeout=config.step_patience,
        ) as job:
            train(config, job)


def train(config: TrainConfig, job: Job) -> None:
    """Train, and print what runs and the result."""
    # The options have what the launcher set.
    job = replace(job, out=shared_folder(job, config.out), restart=config.restart)
    started = time.perf_counter()
    terminal = Terminal(job.ranks, os.environ)
    if line := remark(os.environ, job.ranks):
        terminal.line(line)
    samples, held_out = load(config.data, getattr(torch, config.dtype), job.device)
    samples = samples.at(slice(config.limit or None))
    name = "digits" if config.data == "digits" else "samples"
    terminal.line(
        f"{headline(job)}, global batch {config.batch_size}, "
        f"{len(samples)} training and {len(held_out)} held-out {name}"
    )
    trainer = image_trainer(config, job, samples)
    accuracy = fit(trainer, partial(trainer.evaluate, held_out, correct), config, job, terminal)
    terminal.line(verdict(job, accuracy, time.perf_counter() - started))


def image_trainer(config: TrainConfig, job: Job, samples: Samples) -> Trainer:
    """Return the trainer of a network that classifies `samples`."""
    torch.manual_seed(config.seed)  # the same weights on every rank, also with --sync none
    network = image_network(samples.images.shape[1:], samples.classes).to(samples.images.dtype)
    job.seed(config.seed)
    epoch = -(-len(samples) // config.batch_size)
    return Trainer(
        network,
        partial(cross_entropy, reduction="none"),
        torch.optim.SGD,
        samples,
        group=job,
        optimizer_options={"lr": config.lr, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4},
        sync=config.sync,
        batch_size=config.batch_size,
        seed=config.seed,
        learning_rate=partial(
            learning_rate, peak=config.lr, warm_up=config.warm_up * epoch, steps=config.epochs * epoch
        ),
        accumulate=config.accumulate,
        clip=config.clip,
        amp=config.amp,
    )


def correct(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return 1 for each sample whose label has the highest of its scores, [n, classes], else 0."""
    return (scores.argmax(dim=1) == labels).float()
