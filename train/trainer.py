"""One network in training, the same on every rank."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from train.config import TrainConfig
from train.data import Digits
from train.group import Group
from train.model import digit_network
from train.progress import Progress
from train.sampler import GlobalBatchSampler, Share
from train.schedule import learning_rate
from train.sync import synchronise


class Trainer:
    """Network, optimizer and sampler, and what is done with them; `epoch` counts the epochs done."""

    def __init__(self, config: TrainConfig, group: Group, digits: Digits) -> None:
        self.config, self.group, self.digits = config, group, digits
        torch.manual_seed(config.seed)
        self.sync = synchronise(
            digit_network().to(group.device, digits.images.dtype),
            group,
            config.sync,
            torch.optim.SGD,
            compress=config.compress,
            lr=config.lr,
            momentum=0.9,
            nesterov=True,
            weight_decay=1e-4,
        )
        self.sampler = GlobalBatchSampler(
            samples=len(digits),
            batch_size=config.batch_size,
            rank=group.rank,
            world_size=group.world_size,
            seed=config.seed,
        )
        self.epoch = 0

    @property
    def steps(self) -> int:
        """Optimizer steps done, in the epochs done."""
        return self.epoch * len(self.sampler)

    @property
    def lr(self) -> float:
        """Learning rate of the last step."""
        return float(self.sync.optimizer.param_groups[0]["lr"])

    def run_epoch(self, progress: Progress) -> float:
        """Train on every digit once; returns their mean loss, over all ranks, each as it was met."""
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.group.device)
        started, seen, met = time.perf_counter(), 0, 0
        self.sampler.set_epoch(self.epoch)
        for batch, share in enumerate(self.sampler, start=1):
            self._set_learning_rate(self.steps + batch - 1)
            loss_sum += self._step(share)
            seen, met = seen + len(share.indices), met + share.batch_size
            if progress.bar_is_due():
                rate = met / (time.perf_counter() - started)
                figures = f"loss {loss_sum.item() / seen:.3f}  {rate:.0f} samples/s"  # of rank 0's share
                progress.bar(
                    f"epoch {self.epoch + 1}/{self.config.epochs}", batch / len(self.sampler), figures
                )
        self.epoch += 1
        return self.group.all_reduce_sum(loss_sum.item())[0] / met

    def _set_learning_rate(self, step: int) -> None:
        """Set the rate for `step`, counted from 0 over all epochs; the first epoch warms up."""
        warm_up = len(self.sampler)
        lr = learning_rate(step, peak=self.config.lr, warm_up=warm_up, steps=self.config.epochs * warm_up)
        for parameters in self.sync.optimizer.param_groups:
            parameters["lr"] = lr

    def _step(self, share: Share) -> torch.Tensor:
        """Take one step on the global batch that `share` is part of; returns the sum of its losses."""
        self.sync.optimizer.zero_grad()
        *parts, last = share.indices.tensor_split(self.config.accumulate)
        with self.sync.no_sync():
            losses = [self._backward(part, share.batch_size) for part in parts]
        losses.append(self._backward(last, share.batch_size))
        self.sync.finish()
        if self.config.clip:
            self.sync.clip(self.config.clip)
        self.sync.optimizer.step()
        return torch.stack(losses).sum()

    def _backward(self, part: torch.Tensor, batch_size: int) -> torch.Tensor:
        """Add the gradient of `part` of a global batch of `batch_size`; returns the sum of its losses.

        The optimizer gets the mean over the ranks of their gradients. Wanted is the gradient of the mean loss
        of the global batch, so each rank scales the sum of its losses by world_size / batch_size. A rank
        without a share adds zeros: it must take part in the all-reduce.
        """
        digits = self.digits.at(part)
        loss = cross_entropy(self.sync.model(digits.images), digits.labels, reduction="sum")
        torch.autograd.backward(loss * self.group.world_size / batch_size)
        return loss.detach()

    @torch.no_grad()
    def accuracy(self, held_out: Digits) -> float:
        """Return the part of `held_out` that the network reads correctly; the ranks share the work."""
        mine = held_out.at(slice(self.group.rank, None, self.group.world_size))
        right = (self.sync.model(mine.images).argmax(dim=1) == mine.labels).sum().item()
        return self.group.all_reduce_sum(right)[0] / len(held_out)

    def state(self) -> dict[str, Any]:
        """Return all that the next epoch depends on, for a checkpoint: whole on rank 0, but all must call."""
        return {
            **self.sync.state(),
            "epoch": self.epoch,
            "rng": torch.get_rng_state(),
            "config": self.config.as_text(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which must be the same on every rank."""
        self.sync.load(state)
        self.epoch = state["epoch"]
        torch.set_rng_state(state["rng"])
