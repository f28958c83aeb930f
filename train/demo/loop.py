"""The training from beginning to end: train, evaluate, record and save, once per epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..checkpoint.checkpoints import Checkpoints
from ..data.sampler import Share
from ..job.failure import TrainError
from ..job.group import Job
from ..reporting.metrics import EpochMetrics, MetricsFile
from ..reporting.outputs import TensorBoard, profiled
from ..reporting.terminal import Terminal
from ..training_loop import TrainingLoop
from .config import LAST_EPOCH, TrainConfig
from .trainer import Trainer

# These options decide the order of the samples and the steps; with others, a resumed position is meaningless.
SAME_WHEN_RESUMED = ("data", "seed", "batch_size", "limit", "dtype")


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


def fit(
    trainer: Trainer, evaluate: Callable[[], float], config: TrainConfig, job: Job, terminal: Terminal
) -> float:
    """Train up to `config.epochs`, from the beginning or a checkpoint; returns the last result of `evaluate`.

    `evaluate`, a collective, gives the accuracy on held-out samples. Everything is written to `job.out`.
    """
    # Before setting aside an earlier run's files, because the package may be missing.
    tensorboard = TensorBoard(job.out / "tensorboard") if config.tensorboard and job.rank == 0 else None
    with training_loop(trainer, config, job, terminal) as loop:
        after_epoch = loop.epoch if loop.continues else 0
        metrics_file = open_metrics(job.out, after_epoch, terminal) if job.rank == 0 else None
        trainer.lap = loop.lap
        accuracy = evaluate()
        while loop.epoch < config.epochs:
            left = trainer.batch_sampler.used - loop.position.batch * config.batch_size
            loop.figures.restart()
            started = time.perf_counter()
            with last_epoch_profiled(loop, config):
                for share in loop.batches(trainer):
                    loss_sum = trainer.step(share, loop.step)
                    log(loop, trainer, loss_sum, share)
                    show(loop, trainer, loss_sum / max(1, len(share.indices)), config.epochs, terminal)
            loss = trainer.epoch_loss()
            rate = left / (time.perf_counter() - started)
            accuracy = evaluate()
            metrics = EpochMetrics(
                loop.epoch, loop.step, loss, trainer.last_learning_rate, accuracy, rate, time.time()
            )
            if metrics_file:
                metrics_file.append(metrics)
            if tensorboard:
                tensorboard.add(asdict(metrics), loop.step)
            loop.save()
            report(metrics, config.epochs, terminal)
    return accuracy


def training_loop(trainer: Trainer, config: TrainConfig, job: Job, terminal: Terminal) -> TrainingLoop:
    """Make the loop, and put `trainer` where the training begins: at its beginning or a checkpoint."""
    same = {f"--{name.replace('_', '-')}": config.as_text()[name] for name in SAME_WHEN_RESUMED}
    checkpoints = Checkpoints(job, job.out, keep=config.keep, say=terminal.line, same=same)
    words: dict[str, Any] = {"": None, "auto": True, "if-any": "if-any"}
    return TrainingLoop(
        job,
        trainer.states(),
        resume=words.get(config.resume, Path(config.resume)),
        checkpoints=checkpoints,
        save_every=config.save_every,
        log_every=config.log_every,
        profile="" if config.profile == LAST_EPOCH else config.profile,
        tensorboard=config.tensorboard,
    )


def last_epoch_profiled(loop: TrainingLoop, config: TrainConfig) -> AbstractContextManager[None]:
    """Return a block that is profiled if that is wanted of this epoch: by the last, caches are warm."""
    if config.profile == LAST_EPOCH and loop.epoch + 1 == config.epochs:
        return profiled(loop.job.out / "profile", loop.job)
    return nullcontext()


def log(loop: TrainingLoop, trainer: Trainer, loss_sum: torch.Tensor, share: Share) -> None:
    """Write the figures of a step if it is due, a collective; TrainError if a loss was not finite."""
    if loop.due:
        loop.job.check_finite(loop.step)
        loop.log(
            loss=loop.job.all_reduce_sum(loss_sum.item())[0] / share.batch_size,
            lr=trainer.last_learning_rate,
            samples=share.batch_size,
            gradient_norm=trainer.gradient_norm,
        )


def report(metrics: EpochMetrics, epochs: int, terminal: Terminal) -> None:
    """Write the line of an epoch."""
    epoch = f"epoch {metrics.epoch:>{len(str(epochs))}}/{epochs}"
    loss, accuracy, rate = metrics.loss, metrics.accuracy, metrics.samples_per_second
    terminal.line(f"{epoch}  loss {loss:.4f}  accuracy {accuracy:.4f}  {rate:.0f} samples/s")


def show(loop: TrainingLoop, trainer: Trainer, loss: torch.Tensor, epochs: int, terminal: Terminal) -> None:
    """Draw the progress bar, when it is due; only then `loss`, of this rank, is read."""
    if terminal.bar_is_due():
        last, sampler = loop.figures.last, trainer.batch_sampler
        speed = f"  {last.samples_per_second:.0f} samples/s" if last else ""
        done = loop.position.batch / sampler.batches
        terminal.bar(f"epoch {loop.epoch + 1}/{epochs}", done, f"loss {loss.item():.3f}{speed}")


def open_metrics(out: Path, after_epoch: int, terminal: Terminal) -> MetricsFile:
    """Make the run's directory and open its metrics.jsonl: empty, or to continue after `after_epoch`."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = MetricsFile(out / "metrics.jsonl", after=after_epoch)
    except OSError as error:
        raise TrainError(
            f"cannot write to {out}: {error.strerror}; choose another directory with --out"
        ) from error
    if file.aside:
        terminal.line(f"earlier metrics set aside in {file.aside}")
    return file
