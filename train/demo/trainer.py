"""A model in training, the same on every rank: one step of it, and its evaluation.

loop.py takes the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from ..checkpoint.of_each_rank import OfEachRank
from ..data.sampler import GlobalBatchSampler, Share
from ..job.failure import TrainError
from ..job.group import Group
from ..replicas import placed, share_buffers
from .datasets.samples import Data

PerSample = Callable[[Any, Any], torch.Tensor]
"""A loss or a metric: of a model's outputs and the targets, one number for each sample, [n]."""


class LossSum:
    """The sum of this rank's losses in the epoch, still on the device."""

    def __init__(self, device: torch.device) -> None:
        self.total = torch.zeros((), dtype=torch.float64, device=device)

    def state_dict(self) -> dict[str, Any]:
        """Return the sum; waits for the device."""
        return {"loss_sum": self.total.item()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the sum of a checkpoint."""
        self.total.fill_(float(state["loss_sum"]))


class Trainer:
    """Model, optimizer and sampler, and a step of the training.

    It is what TrainingLoop.batches takes: each batch is this rank's share of a global one. `lap` is called at
    the end of each part of a step, as StepLog.lap.
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
        sync: str = "ddp",
        batch_size: int = 64,
        seed: int = 0,
        drop_last: bool = False,
        learning_rate: Callable[[int], float] | None = None,
        accumulate: int = 1,
        clip: float = 0.0,
        amp: bool = False,
    ) -> None:
        """Synchronise `model` as `sync` says, one of replicas.CHOICES; a collective call.

        `loss` returns the loss of each sample, as torch's functions do with reduction="none": only so can
        the gradient be that of the global batch, which has `batch_size` samples over all ranks. `drop_last`
        leaves out a smaller last batch. `learning_rate` gives the rate of a step, counted from 0; None leaves
        the optimizer's. `accumulate` takes a rank's share of a batch in so many parts. `clip` bounds the
        2-norm of the gradients; 0 does not. `amp` computes in bfloat16 where that is safe.
        """
        self.loss, self.data, self.group = loss, data, group
        self.learning_rate, self.accumulate, self.clip, self.amp = learning_rate, accumulate, clip, amp
        self.model = placed(model, group, sync)
        self.optimizer = optimizer(self.model.parameters(), **(optimizer_options or {}))
        self.batch_sampler = GlobalBatchSampler(
            samples=len(data),
            batch_size=batch_size,
            rank=group.rank,
            world_size=group.world_size,
            seed=seed,
            drop_last=drop_last,
        )
        self.gradient_norm: float | None = None  # of the last step, before clipping
        self.lap: Callable[[str], None] = lambda _: None
        self.losses = LossSum(group.device)

    def __iter__(self) -> Iterator[Share]:
        return self.batch_sampler.shares()

    @property
    def last_learning_rate(self) -> float:
        """Learning rate of the last step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def states(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "losses": OfEachRank(self.group, self.losses, other=self._take_losses),
        }

    def step(self, share: Share, number: int) -> torch.Tensor:
        """Take the step `number`, from 1, on the global batch that `share` is part of.

        Returns the sum of this rank's losses, still on the device.
        """
        if self.learning_rate:
            for parameters in self.optimizer.param_groups:
                parameters["lr"] = self.learning_rate(number - 1)
        self.optimizer.zero_grad()
        *parts, last = share.indices.tensor_split(self.accumulate)
        with getattr(self.model, "no_sync", nullcontext)():
            losses = [self._backward(part, share.batch_size) for part in parts]
        losses.append(self._backward(last, share.batch_size))
        if self.clip:
            self.gradient_norm = norm = float(clip_grad_norm_(self.model.parameters(), self.clip))
            if not math.isfinite(norm):  # the same on every rank; the step would leave no weight but NaN
                raise TrainError(
                    f"step {number}: the gradient norm is {norm}, so the gradients cannot be clipped\n"
                    "the training diverges: lower --lr, or look for a sample whose loss is not finite"
                )
        self.optimizer.step()
        loss_sum = torch.stack(losses).sum()
        self.losses.total += loss_sum
        return loss_sum

    def epoch_loss(self) -> float:
        """Return the mean loss of the samples of the epoch, each before its own step; the next begins."""
        mean = self.group.all_reduce_sum(self.losses.total.item())[0] / self.batch_sampler.used
        self.losses.total.zero_()
        return mean

    def _take_losses(self, of_ranks: list[Any]) -> None:
        """Continue at another number of ranks: rank 0 has the losses so far."""
        if self.group.rank == 0:
            self.losses.total.fill_(sum(float(each["loss_sum"]) for each in of_ranks))

    def _backward(self, part: torch.Tensor, batch_size: int) -> torch.Tensor:
        """Add the gradient of `part` of a global batch of `batch_size`; returns the sum of its losses.

        The optimizer gets the mean over the ranks of their gradients. It should be the gradient of the mean
        loss of the global batch, so each rank scales the sum of its losses by world_size / batch_size.
        """
        with _batch_norm_explained() if len(part) else _statistics_kept(self.model):
            loss_sum = self._per_sample(self.loss, self.data, part).sum()
        self.group.losses.note(loss_sum)
        torch.autograd.backward(loss_sum * self.group.world_size / batch_size)
        self.lap("compute")
        return loss_sum.detach()

    def _per_sample(self, function: PerSample, data: Data, indices: torch.Tensor) -> torch.Tensor:
        """Run the model on the samples `indices` of `data`; returns `function` of each, [n].

        Without samples the model runs on one that counts for nothing: every rank must take part in what DDP
        communicates, and not every model can take an empty batch.
        """
        present = indices if len(indices) else torch.zeros(1, dtype=torch.int64)
        inputs, targets = data.batch(present)
        self.lap("data")
        with torch.autocast(self.group.device.type, torch.bfloat16, enabled=self.amp):
            outputs = self.model(inputs)
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
        share_buffers(self.model, self.group)
        sampler = GlobalBatchSampler(
            samples=len(data),
            batch_size=batch_size,
            rank=self.group.rank,
            world_size=self.group.world_size,
            shuffle=False,
        )
        with _evaluating([*self.model.modules()]):
            sums = [
                self._per_sample(metric, data, share.indices).double().sum() for share in sampler.shares()
            ]
        return self.group.all_reduce_sum(float(torch.stack(sums).sum()))[0] / len(data)


@contextmanager
def _evaluating(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Have `modules`, without those inside of them, in evaluation mode."""
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

    Raises TrainError for a SyncBatchNorm that trains: the ranks exchange its statistics.
    """
    norms = [module for module in model.modules() if isinstance(module, _NormBase)]
    if any(isinstance(norm, nn.SyncBatchNorm) and norm.training for norm in norms):
        raise TrainError(
            "this rank has no sample of a part of a batch, and a SyncBatchNorm would count another one\n"
            "leave out a smaller last batch with drop_last=True, take a larger batch_size, or accumulate less"
        )
    return _evaluating(norms)


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
