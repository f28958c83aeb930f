"""Epochs of a Trainer without its loop: no checkpoints, no figures."""

from __future__ import annotations

from typing import Any

from muster.train.demo.trainer import Trainer
from tests.train.states import consolidated, restore


def run_epoch(trainer: Trainer, epoch: int = 0) -> float:
    """Train for this epoch, counted from 0; returns the mean loss."""
    sampler = trainer.batch_sampler
    sampler.set_epoch(epoch)
    for step, share in enumerate(sampler.shares(), start=epoch * sampler.batches + 1):
        trainer.step(share, step)
    return trainer.epoch_loss()


def whole_state(trainer: Trainer) -> dict[str, Any]:
    """Return model and optimizer as a checkpoint has them."""
    return consolidated(trainer.model, trainer.optimizer, range(trainer.group.world_size))


def put_back(trainer: Trainer, state: dict[str, Any]) -> None:
    """Continue from the result of whole_state."""
    restore(trainer.model, trainer.optimizer, state)
