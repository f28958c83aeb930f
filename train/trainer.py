"""One network in training, the same on every rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from .checkpoint.state import consolidated, random_state, restore, set_random_state
from .config import TrainConfig
from .data.samples import Samples
from .errors import TrainError
from .group import Group
from .model import image_network
from .progress import Progress
from .sampler import GlobalBatchSampler, Share
from .schedule import learning_rate
from .sync import synchronise

# What makes the order of the samples and the steps: changed, a position in the training means nothing.
SAME_WHEN_RESUMED = ("data", "seed", "batch_size", "limit", "dtype")


class Trainer:
    """Network, optimizer and sampler, and what is done with them.

    `epoch` counts the epochs done, `batch` the batches done of the next one, and `loss_sum` adds up this
    rank's losses in them.
    """

    def __init__(self, config: TrainConfig, group: Group, samples: Samples) -> None:
        self.config, self.group, self.samples = config, group, samples
        torch.manual_seed(config.seed)
        self.sync = synchronise(
            image_network(samples).to(group.device, samples.images.dtype),
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
            samples=len(samples),
            batch_size=config.batch_size,
            rank=group.rank,
            world_size=group.world_size,
            seed=config.seed,
        )
        self.epoch = self.batch = 0
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=group.device)

    @property
    def steps(self) -> int:
        """Optimizer steps done, over all epochs."""
        return self.epoch * len(self.sampler) + self.batch

    @property
    def epoch_is_done(self) -> bool:
        """Whether the last batch of the epoch is done."""
        return self.batch == len(self.sampler)

    @property
    def lr(self) -> float:
        """Learning rate of the last step."""
        return float(self.sync.optimizer.param_groups[0]["lr"])

    def run_epoch(self, progress: Progress, after_step: Callable[[], None]) -> float:
        """Train on the rest of the epoch; returns the mean loss of all its samples, each as it was met."""
        started, met = time.perf_counter(), 0
        self.sampler.set_epoch(self.epoch, skip=self.batch)
        for share in self.sampler:
            self._set_learning_rate(self.steps)
            loss = self._step(share)
            self.loss_sum += loss
            self.batch, met = self.batch + 1, met + share.batch_size
            if progress.bar_is_due():
                rate = met / (time.perf_counter() - started)
                mean = loss.item() / max(1, len(share.indices))  # of rank 0's share
                progress.bar(
                    f"epoch {self.epoch + 1}/{self.config.epochs}",
                    self.batch / len(self.sampler),
                    f"loss {mean:.3f}  {rate:.0f} samples/s",
                )
            after_step()
        mean = self.group.all_reduce_sum(self.loss_sum.item())[0] / len(self.samples)
        self.epoch, self.batch = self.epoch + 1, 0
        self.loss_sum.zero_()
        return mean

    def _set_learning_rate(self, step: int) -> None:
        """Set the rate for `step`, counted from 0 over all epochs."""
        epoch = len(self.sampler)
        warm_up, steps = self.config.warm_up * epoch, self.config.epochs * epoch
        lr = learning_rate(step, peak=self.config.lr, warm_up=warm_up, steps=steps)
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
        samples = self.samples.at(part)
        with torch.autocast(self.group.device.type, torch.bfloat16, enabled=self.config.amp):
            scores = self.sync.model(samples.images)
        loss = cross_entropy(scores.to(samples.images.dtype), samples.labels, reduction="sum")
        torch.autograd.backward(loss * self.group.world_size / batch_size)
        return loss.detach()

    @torch.no_grad()
    def accuracy(self, held_out: Samples) -> float:
        """Return the part of `held_out` that the network reads correctly; the ranks share the work."""
        mine = held_out.at(slice(self.group.rank, None, self.group.world_size))
        right = (self.sync.model(mine.images).argmax(dim=1) == mine.labels).sum().item()
        return self.group.all_reduce_sum(right)[0] / len(held_out)

    def state(self, writers: Sequence[int]) -> dict[str, Any]:
        """Return everything that the next step depends on, whole on the ranks `writers`; a collective."""
        own = {"random": random_state(self.group.device), "loss_sum": self.loss_sum.item()}
        return {
            **consolidated(self.sync.model, self.sync.optimizer, writers),
            "epoch": self.epoch,
            "batch": self.batch,
            "ranks": self.group.all_gather(own),
            "config": self.config.as_text(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which must be the same on every rank; at any number of ranks.

        At the number that made it, bit by bit. Another number has nothing that each of its ranks could take:
        the losses so far go to rank 0, and the random numbers are those that the seed gives.
        """
        self._refuse_another_training(state["config"])
        restore(self.sync.model, self.sync.optimizer, state)
        self.epoch, self.batch = state["epoch"], state["batch"]
        ranks = state["ranks"]
        if len(ranks) == self.group.world_size:
            set_random_state(ranks[self.group.rank]["random"], self.group.device)
            self.loss_sum.fill_(ranks[self.group.rank]["loss_sum"])
        elif self.group.rank == 0:
            self.loss_sum.fill_(sum(rank["loss_sum"] for rank in ranks))

    def _refuse_another_training(self, before: dict[str, str]) -> None:
        now = self.config.as_text()
        changed = [name for name in SAME_WHEN_RESUMED if before.get(name) != now[name]]
        if changed:
            raise TrainError(
                "\n".join(
                    f"the checkpoint is of a training with --{name.replace('_', '-')} {before.get(name)}, "
                    f"not {now[name]}; continue with the same"
                    for name in changed
                )
            )
