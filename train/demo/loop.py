"""The training from beginning to end: train, evaluate, record and save, once per epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..checkpoint.checkpoints import Checkpoints
from ..job.group import Job
from ..reporting.metrics import EpochMetrics, MetricsFile
from ..reporting.outputs import TensorBoard
from ..reporting.terminal import Terminal
from ..training_loop import TrainingLoop
from .config import TrainConfig
from .datasets import Samples
from .trainer import Trainer

# These options decide the order of the samples and the steps; with others, a resumed position is meaningless.
SAME_WHEN_RESUMED = ("data", "seed", "batch_size", "limit")


def learning_rate(step: int, *, peak: float, warm_up: int, steps: int) -> float:
    """Return the rate for `step`, counted from 0: a line up to `peak`, which a cosine then takes to 0.

    The line is as long as `warm_up` steps, but at most half of all `steps`, so that every training reaches
    the peak and comes down from it. The warm-up is that of Goyal et al., 2017 (arXiv:1706.02677), section
    2.2; the cosine is equation 5 of Loshchilov and Hutter, SGDR, 2017 (arXiv:1608.03983), without restarts.
    """
    rising = min(warm_up, steps // 2)
    if step < rising:
        return peak * (step + 1) / rising
    return peak * 0.5 * (1 + math.cos(math.pi * (step - rising) / (steps - rising)))


def scheduled(config: TrainConfig, samples: int) -> Callable[[int], float]:
    """Return the learning rate of each step of a training."""
    epoch = -(-samples // config.batch_size)
    return partial(learning_rate, peak=config.lr, warm_up=config.warm_up * epoch, steps=config.epochs * epoch)


def fit(config: TrainConfig, job: Job, samples: Samples, held_out: Samples, terminal: Terminal) -> float:
    """Train up to `config.epochs`, from the beginning or a checkpoint; returns the last accuracy.

    Everything is written to `job.out`.
    """
    trainer = Trainer(config, job, samples, scheduled(config, len(samples)))
    # Before setting aside an earlier run's files, because the package may be missing.
    tensorboard = TensorBoard(job.out / "tensorboard") if config.tensorboard and job.rank == 0 else None
    with training_loop(trainer, config, job, terminal) as loop:
        after_epoch = loop.epoch if loop.continues else 0
        file = MetricsFile(job.out / "metrics.jsonl", after=after_epoch) if job.rank == 0 else None
        if file and file.aside:
            terminal.line(f"earlier metrics set aside in {file.aside}")
        trainer.lap = loop.lap
        accuracy = trainer.accuracy(held_out)
        while loop.epoch < config.epochs:
            left = trainer.batch_sampler.used - loop.position.batch * config.batch_size
            loop.figures.restart()
            started = time.perf_counter()
            for share in loop.batches(trainer):
                log(loop, trainer, trainer.step(share, loop.step), share.batch_size)
            loss = trainer.epoch_loss()
            rate = left / (time.perf_counter() - started)
            accuracy = trainer.accuracy(held_out)
            metrics = EpochMetrics(
                loop.epoch, loop.step, loss, trainer.last_learning_rate, accuracy, rate, time.time()
            )
            if file:
                file.append(metrics)
            if tensorboard:
                tensorboard.add(asdict(metrics), loop.step)
            loop.save()
            report(metrics, config.epochs, terminal)
    return accuracy


def training_loop(trainer: Trainer, config: TrainConfig, job: Job, terminal: Terminal) -> TrainingLoop:
    """Make the loop, and put `trainer` where the training begins: at its beginning or a checkpoint."""
    same = {f"--{name.replace('_', '-')}": str(getattr(config, name)) for name in SAME_WHEN_RESUMED}
    checkpoints = Checkpoints(job, job.out, keep=config.keep, say=terminal.line, same=same)
    words: dict[str, Any] = {"": None, "auto": True, "if-any": "if-any"}
    return TrainingLoop(
        job,
        trainer.states(),
        resume=words.get(config.resume, Path(config.resume)),
        checkpoints=checkpoints,
        save_every=config.save_every,
        log_every=config.log_every,
        profile=config.profile,
        tensorboard=config.tensorboard,
    )


def log(loop: TrainingLoop, trainer: Trainer, loss: torch.Tensor, batch_size: int) -> None:
    """Write the figures of a step if it is due, a collective; TrainError if a loss was not finite."""
    if loop.due:
        loop.job.check_finite(loop.step)
        loop.log(
            loss=loss, lr=trainer.last_learning_rate, samples=batch_size, gradient_norm=trainer.gradient_norm
        )


def report(metrics: EpochMetrics, epochs: int, terminal: Terminal) -> None:
    """Write the line of an epoch."""
    epoch = f"epoch {metrics.epoch:>{len(str(epochs))}}/{epochs}"
    loss, accuracy, rate = metrics.loss, metrics.accuracy, metrics.samples_per_second
    terminal.line(f"{epoch}  loss {loss:.4f}  accuracy {accuracy:.4f}  {rate:.0f} samples/s")
