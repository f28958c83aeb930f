"""The training from beginning to end: train, evaluate, write down, checkpoint, once per epoch."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .checkpoint.checkpoints import Checkpoints
from .config import TrainConfig
from .data.samples import Samples
from .errors import TrainError
from .group import Group
from .metrics import EpochMetrics, MetricsFile
from .outputs import LOG, TensorBoard, profiled
from .progress import Progress
from .trainer import Trainer


def fit(config: TrainConfig, group: Group, samples: Samples, held_out: Samples, progress: Progress) -> float:
    """Train up to `config.epochs`, from the beginning or a checkpoint; returns the held-out accuracy."""
    trainer = Trainer(config, group, samples)
    checkpoints = Checkpoints(group, config.out, keep=config.keep, say=progress.line)
    # Before anything of an earlier run is set aside: the package may not be there.
    board = TensorBoard(config.out / "tensorboard") if config.tensorboard and group.rank == 0 else None
    state = where_to_begin(config, checkpoints, progress)
    if state:
        trainer.restore(state)

    def save() -> None:
        checkpoints.save(trainer.steps, trainer.state(checkpoints.writers))

    def save_if_due() -> None:
        if config.save_every and trainer.steps % config.save_every == 0 and not trainer.epoch_is_done:
            save()

    metrics_file = open_metrics(config.out, trainer.epoch) if group.rank == 0 else None
    accuracy = trainer.accuracy(held_out)
    while trainer.epoch < config.epochs:
        started = time.perf_counter()
        last = trainer.epoch + 1 == config.epochs  # when all is warm
        with profiled(config.out / "profile", group) if config.profile and last else nullcontext():
            loss = trainer.run_epoch(progress, save_if_due)
        rate = len(samples) / (time.perf_counter() - started)
        accuracy = trainer.accuracy(held_out)
        metrics = EpochMetrics(trainer.epoch, trainer.steps, loss, trainer.lr, accuracy, rate, time.time())
        if metrics_file:
            metrics_file.append(metrics)
        if board:
            board.add(asdict(metrics), trainer.steps)
        save()
        epoch = f"epoch {trainer.epoch:>{len(str(config.epochs))}}/{config.epochs}"
        LOG.info("%s  loss %.6f  accuracy %.4f  %.0f samples/s over all ranks", epoch, loss, accuracy, rate)
        progress.line(f"{epoch}  loss {loss:.4f}  accuracy {accuracy:.4f}  {rate:.0f} samples/s")
    return accuracy


def where_to_begin(
    config: TrainConfig, checkpoints: Checkpoints, progress: Progress
) -> dict[str, Any] | None:
    """Return the state to continue from, None to start afresh; says which.

    A job that was started again continues where it was, and only if it had not come to a checkpoint yet,
    where it was told to.
    """
    newest = checkpoints.newest() if config.resume == "auto" or config.restart > 0 else None
    if newest is None and config.resume not in {"", "auto"}:
        return checkpoints.chosen(Path(config.resume))
    if newest is None and (config.resume or config.restart):
        progress.line(f"no checkpoint in {checkpoints.folder} on any host: starting afresh")
    if newest is None:
        checkpoints.begin()
    return newest


def open_metrics(out: Path, after_epoch: int) -> MetricsFile:
    """Make the run's directory and begin, or after a resume continue, its metrics.jsonl."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        return MetricsFile(out / "metrics.jsonl", after_epoch=after_epoch)
    except OSError as error:
        raise TrainError(
            f"cannot write to {out}: {error.strerror}; choose another directory with --out"
        ) from error
