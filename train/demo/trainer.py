"""A model in training, the same on every rank: a step of it, an epoch, and its evaluation.

The strategies of train/sync have one interface here, so that they can be compared.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from ..checkpoint.random_numbers import RankState, set_random_state
from ..checkpoint.state import (
    consolidated,
    refuse_another_network,
    restore,
)
from ..data.sampler import GlobalBatchSampler, Share
from ..job.failure import TrainError
from ..job.group import Group
from ..sync import make_strategy
from .datasets.samples import Data

PerSample = Callable[[Any, Any], torch.Tensor]
"""A loss or a metric: of a model's outputs and the targets, one number for each sample, [n]."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step just taken: the `batch`-th of the epoch's `batches`, counted from 1.

    `loss_sum` has the sum of this rank's losses in the step, over `samples` samples, still on the device.
    """

    batch: int
    batches: int
    loss_sum: torch.Tensor
    samples: int
    batch_size: int  # of all ranks
    gradient_norm: float | None  # before clipping; None without
    samples_per_second: float  # of all ranks, since the epoch began or was resumed

    @property
    def mean_loss(self) -> float:
        """The mean of this rank's losses; waits for the device."""
        return self.loss_sum.item() / max(1, self.samples)


class Trainer:
    """Model, optimizer and sampler, and the steps of the training.

    `epoch` counts the finished epochs, `batch` the finished batches of the current one, and `loss_sum` is the
    sum of this rank's losses in them. `lap` is called at the end of each part of a step, as StepLog.lap.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: PerSample,
        optimizer: type[Optimizer],
        data: Data,
        *,
        group: Group,
        optimizer_options: Mapping[str, Any] | None = None,
        strategy: str = "ddp",
        batch_size: int = 64,
        seed: int = 0,
        drop_last: bool = False,
        learning_rate: Callable[[int], float] | None = None,
        accumulate: int = 1,
        clip: float = 0.0,
        amp: bool = False,
    ) -> None:
        """Put `model` in the care of `strategy`, one of sync.STRATEGIES; a collective call.

        `loss` returns the loss of each sample, as torch's functions do with reduction="none": only so can
        the gradient be that of the global batch, which has `batch_size` samples over all ranks. `drop_last`
        leaves out a smaller last batch. `learning_rate` gives the rate of a step, counted from 0; None leaves
        the optimizer's. `accumulate` takes a rank's share of a batch in so many parts. `clip` bounds the
        2-norm of the gradients; 0 does not. `amp` computes in bfloat16 where that is safe. Raises TrainError
        where the strategy cannot work.
        """
        self.loss, self.data, self.group = loss, data, group
        self.learning_rate, self.accumulate, self.clip, self.amp = learning_rate, accumulate, clip, amp
        self.strategy = make_strategy(strategy, model, group, optimizer, **(optimizer_options or {}))
        self.sampler = GlobalBatchSampler(
            samples=len(data),
            batch_size=batch_size,
            rank=group.rank,
            world_size=group.world_size,
            seed=seed,
            drop_last=drop_last,
        )
        self.epoch = self.batch = 0
        self.gradient_norm: float | None = None
        self.lap: Callable[[str], None] = lambda _: None
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=group.device)

    @property
    def steps(self) -> int:
        """Optimizer steps taken, over all epochs."""
        return self.epoch * self.sampler.batches + self.batch

    @property
    def epoch_is_done(self) -> bool:
        """Whether the last batch of the epoch is done."""
        return self.batch == self.sampler.batches

    @property
    def last_learning_rate(self) -> float:
        """Learning rate of the last step."""
        return float(self.strategy.optimizer.param_groups[0]["lr"])

    def run_epoch(self, after_step: Callable[[Step], None] = lambda _: None) -> float:
        """Train on the rest of the epoch; returns the mean loss of its samples, each before its own step."""
        started, samples = time.perf_counter(), 0
        self.sampler.set_epoch(self.epoch, skip=self.batch)
        for share in self.sampler.shares():
            self._set_learning_rate()
            loss_sum = self._step(share)
            self.loss_sum += loss_sum
            self.batch, samples = self.batch + 1, samples + share.batch_size
            rate = samples / (time.perf_counter() - started)
            after_step(
                Step(
                    self.batch,
                    self.sampler.batches,
                    loss_sum,
                    len(share.indices),
                    share.batch_size,
                    self.gradient_norm,
                    rate,
                )
            )
        mean = self.group.all_reduce_sum(self.loss_sum.item())[0] / self.sampler.used
        self.epoch, self.batch = self.epoch + 1, 0
        self.loss_sum.zero_()
        return mean

    def _set_learning_rate(self) -> None:
        if self.learning_rate:
            rate = self.learning_rate(self.steps)
            for parameters in self.strategy.optimizer.param_groups:
                parameters["lr"] = rate

    def _step(self, share: Share) -> torch.Tensor:
        """Take one step on the global batch that `share` is part of; returns the sum of its losses."""
        self.strategy.optimizer.zero_grad()
        *parts, last = share.indices.tensor_split(self.accumulate)
        with self.strategy.no_sync():
            losses = [self._backward(part, share.batch_size) for part in parts]
        losses.append(self._backward(last, share.batch_size))
        if self.clip:
            self.gradient_norm = norm = self.strategy.clip(self.clip)
            if not math.isfinite(norm):  # the same on every rank; the step would leave no weight but NaN
                raise TrainError(
                    f"step {self.steps + 1}: the gradient norm is {norm}, "
                    "so the gradients cannot be clipped\n"
                    "the training diverges: lower --lr, or look for a sample whose loss is not finite"
                )
        self.strategy.optimizer.step()
        return torch.stack(losses).sum()

    def _backward(self, part: torch.Tensor, batch_size: int) -> torch.Tensor:
        """Add the gradient of `part` of a global batch of `batch_size`; returns the sum of its losses.

        The optimizer gets the mean over the ranks of their gradients. It should be the gradient of the mean
        loss of the global batch, so each rank scales the sum of its losses by world_size / batch_size.
        """
        with _batch_norm_explained() if len(part) else _statistics_kept(self.strategy.model):
            loss_sum = self._per_sample(self.loss, self.data, part).sum()
        torch.autograd.backward(loss_sum * self.group.world_size / batch_size)
        self.lap("compute")
        return loss_sum.detach()

    def _per_sample(self, function: PerSample, data: Data, indices: torch.Tensor) -> torch.Tensor:
        """Run the model on the samples `indices` of `data`; returns `function` of each, [n].

        Without samples the model runs on one that counts for nothing: every rank must take part in what the
        strategy communicates, and not every model can take an empty batch.
        """
        present = indices if len(indices) else torch.zeros(1, dtype=torch.int64)
        inputs, targets = data.batch(present)
        self.lap("data")
        with torch.autocast(self.group.device.type, torch.bfloat16, enabled=self.amp):
            outputs = self.strategy.model(inputs)
        numbers = function(tree_map(_in_full, outputs) if self.amp else outputs, targets)
        if numbers.shape != (len(present),):
            raise TrainError(
                f"a loss or metric must give one number for each of {len(present)} samples, "
                f"got a tensor of shape {list(numbers.shape)}\n"
                'torch\'s losses do with reduction="none"; take the mean over the other dimensions'
            )
        return numbers[: len(indices)]

    @torch.no_grad()
    def evaluate(self, data: Data, metric: PerSample, *, batch_size: int = 1024) -> float:
        """Return the mean of `metric` over all samples of `data`; the ranks share the work.

        The model is in evaluation mode: dropout is off, and a BatchNorm uses its running statistics without
        changing them. With `amp` it computes as in training. `batch_size` is the number of samples in a
        forward pass of all ranks together.
        """
        self.strategy.share_buffers()
        sampler = GlobalBatchSampler(
            samples=len(data),
            batch_size=batch_size,
            rank=self.group.rank,
            world_size=self.group.world_size,
            shuffle=False,
        )
        with _evaluating([*self.strategy.model.modules()]):
            sums = [
                self._per_sample(metric, data, share.indices).double().sum() for share in sampler.shares()
            ]
        return self.group.all_reduce_sum(float(torch.stack(sums).sum()))[0] / len(data)

    def state(self, writers: Sequence[int]) -> dict[str, Any]:
        """Return everything that the next step depends on, complete on the ranks `writers`; a collective."""
        self.strategy.share_buffers()
        mine = RankState.here(self.loss_sum.item(), self.group.device)
        return {
            **consolidated(self.strategy.model, self.strategy.optimizer, writers),
            "epoch": self.epoch,
            "batch": self.batch,
            "order": self.sampler.order,
            "ranks": [each.in_checkpoint() for each in self.group.all_gather(mine, RankState)],
        }

    def check(self, state: dict[str, Any]) -> None:
        """Raise TrainError if `state` is of another model or order; one rank may call it alone."""
        if state.get("order") != self.sampler.order:
            raise TrainError(
                f"the checkpoint is of a training with {state.get('order', 'another order of samples')}, "
                f"not {self.sampler.order}: its position means nothing here"
            )
        refuse_another_network(self.strategy.model, state["model"])

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which must be the same on every rank; at any number of ranks.

        At the number of ranks that made it, the training continues bit by bit. At another number no rank has
        a state of its own to continue from: the losses so far go to rank 0, and the random numbers are those
        that the seed gives. Raises TrainError if the state is of another model, optimizer or order.
        """
        self.check(state)
        restore(self.strategy.model, self.strategy.optimizer, state)
        self.epoch, self.batch = state["epoch"], state["batch"]
        ranks = state["ranks"]
        if len(ranks) == self.group.world_size:
            set_random_state(ranks[self.group.rank]["random"], self.group.device)
            self.loss_sum.fill_(ranks[self.group.rank]["loss_sum"])
        elif self.group.rank == 0:
            self.loss_sum.fill_(sum(rank["loss_sum"] for rank in ranks))


@contextmanager
def _evaluating(modules: list[nn.Module]) -> Iterator[None]:
    """Have `modules`, each without those inside of it, in evaluation mode."""
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, training in zip(modules, modes, strict=True):
            module.training = training


def _statistics_kept(model: nn.Module) -> AbstractContextManager[None]:
    """Return a block in which no forward pass adds to the running statistics of a BatchNorm.

    But of a SyncBatchNorm: in training the ranks exchange its statistics, and all of them must.
    """
    norms = [module for module in model.modules() if isinstance(module, _NormBase)]
    return _evaluating([norm for norm in norms if not isinstance(norm, nn.SyncBatchNorm)])


@contextmanager
def _batch_norm_explained() -> Iterator[None]:
    """Raise a TrainError where a BatchNorm refuses a share of one sample, which has no variance."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise TrainError(
            f"this rank's share of a batch has one sample, on which a BatchNorm cannot train: {error}\n"
            "leave out a smaller last batch with drop_last=True, take another batch_size, "
            "or normalise each sample alone, as GroupNorm and LayerNorm do"
        ) from error


def _in_full(leaf: Any) -> Any:
    """Return a tensor of bfloat16 as float32: a loss needs its bits."""
    half = isinstance(leaf, torch.Tensor) and leaf.dtype == torch.bfloat16
    return leaf.float() if half else leaf
