"""The training from beginning to end: train, evaluate, write down, checkpoint, once per epoch."""

from __future__ import annotations

import time
from pathlib import Path

from train import checkpoint
from train.config import TrainConfig
from train.data import Digits
from train.errors import TrainError
from train.group import Group
from train.metrics import EpochMetrics, MetricsFile
from train.progress import Progress
from train.trainer import Trainer


def fit(config: TrainConfig, group: Group, digits: Digits, held_out: Digits, progress: Progress) -> float:
    """Train up to `config.epochs`, on from `config.resume` if given; returns the held-out accuracy, 0 to 1.

    Rank 0 alone reads and writes files, so only its host needs them.
    """
    trainer = Trainer(config, group, digits)
    if config.resume:
        trainer.restore(group.broadcast(checkpoint.load(config.resume) if group.rank == 0 else {}))
    metrics_file = open_metrics(config.out, trainer.epoch) if group.rank == 0 else None
    accuracy = trainer.accuracy(held_out)
    while trainer.epoch < config.epochs:
        started = time.perf_counter()
        loss = trainer.run_epoch(progress)
        rate = len(digits) / (time.perf_counter() - started)
        accuracy = trainer.accuracy(held_out)
        state = trainer.state()
        if metrics_file:
            metrics_file.append(
                EpochMetrics(trainer.epoch, trainer.steps, loss, trainer.lr, accuracy, rate, time.time())
            )
            checkpoint.save(config.out / "checkpoint.pt", state)
        epoch = f"epoch {trainer.epoch:>{len(str(config.epochs))}}/{config.epochs}"
        progress.line(f"{epoch}  loss {loss:.4f}  accuracy {accuracy:.4f}  {rate:.0f} samples/s")
    return accuracy


def open_metrics(out: Path, after_epoch: int) -> MetricsFile:
    """Make the run's directory and begin, or after a resume continue, its metrics.jsonl."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        return MetricsFile(out / "metrics.jsonl", after_epoch=after_epoch)
    except OSError as error:
        raise TrainError(
            f"cannot write to {out}: {error.strerror}; choose another directory with --out"
        ) from error
