"""A network in training: one step of it, and its evaluation. loop.py takes the steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from ..data.sampler import GlobalBatchSampler, Share
from ..job.failure import TrainError
from ..job.group import Job
from ..replicas import synchronise
from .config import TrainConfig
from .datasets import Samples
from .image_network import image_network


class LossSum:
    """The sum of the losses of the epoch, still on the device; the same on every rank."""

    def __init__(self, device: torch.device) -> None:
        self.total = torch.zeros((), dtype=torch.float64, device=device)

    def state_dict(self) -> dict[str, Any]:
        """Return the sum; waits for the device."""
        return {"loss_sum": self.total.item()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total.fill_(float(state["loss_sum"]))


class Trainer:
    """Network, optimizer and sampler, and a step of the training.

    It is what TrainingLoop.batches takes: each batch is this rank's share of a global one. `learning_rate`
    gives the rate of a step, counted from 0. `lap` is called after each part of a step, as StepLog.lap.
    """

    def __init__(
        self, config: TrainConfig, group: Job, samples: Samples, learning_rate: Callable[[int], float]
    ) -> None:
        self.config, self.group, self.samples, self.learning_rate = config, group, samples, learning_rate
        torch.manual_seed(config.seed)
        network = image_network(samples.images.shape[1:], samples.classes)
        group.seed(config.seed)
        self.model = synchronise(network, group)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=config.lr, momentum=0.9, nesterov=True, weight_decay=1e-4
        )
        self.batch_sampler = self._sampler(samples, config.batch_size, seed=config.seed)
        self.gradient_norm: float | None = None  # of the last step, before clipping
        self.lap: Callable[[str], None] = lambda _: None
        self.losses = LossSum(group.device)

    def __iter__(self) -> Iterator[Share]:
        return self.batch_sampler.shares()

    def _sampler(self, samples: Samples, batch_size: int, **order: Any) -> GlobalBatchSampler:
        group = self.group
        return GlobalBatchSampler(
            samples=len(samples), batch_size=batch_size, rank=group.rank, world_size=group.world_size, **order
        )

    @property
    def last_learning_rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def states(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "losses": self.losses}

    def step(self, share: Share, number: int) -> torch.Tensor:
        """Take the step `number`, from 1, on the global batch of `share`; returns its mean loss."""
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = self.learning_rate(number - 1)
        self.optimizer.zero_grad()
        batch = self.samples.at(share.indices)
        self.lap("data")
        with self._precision():
            scores = self.model(batch.images)
        loss = self.group.global_mean(cross_entropy(scores.float(), batch.labels, reduction="none"))
        torch.autograd.backward(loss)
        self.lap("compute")
        if self.config.clip:
            self.gradient_norm = norm = float(clip_grad_norm_(self.model.parameters(), self.config.clip))
            if not math.isfinite(norm):  # the same on every rank; the step would leave no weight but NaN
                raise TrainError(
                    f"step {number}: the gradient norm is {norm}, so the gradients cannot be clipped\n"
                    "the training diverges: lower --lr, or look for a sample whose loss is not finite"
                )
        self.optimizer.step()
        self.losses.total += loss.detach().double() * share.batch_size
        return loss.detach()

    def epoch_loss(self) -> float:
        """Return the mean loss of the samples of the epoch, each before its own step; the next begins."""
        mean = self.losses.total.item() / self.batch_sampler.used
        self.losses.total.zero_()
        return mean

    @torch.no_grad()
    def accuracy(self, samples: Samples) -> float:
        """Return the share of `samples` whose label has the highest score; the ranks share the work."""
        right = 0
        for share in self._sampler(samples, 1024, shuffle=False).shares():
            batch = samples.at(share.indices)
            with self._precision():
                right += int((self.model(batch.images).argmax(dim=1) == batch.labels).sum())
        return self.group.all_reduce_sum(right)[0] / len(samples)

    def _precision(self) -> AbstractContextManager[None]:
        return torch.autocast(self.group.device.type, torch.bfloat16, enabled=self.config.amp)
