"""What a training loop in plain PyTorch lacks at any number of ranks: resuming, saving, logging, ending."""

from __future__ import annotations

import gc
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, MutableMapping, Sized
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar, cast

import torch
from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, IterableDataset

from .checkpoint.checkpoints import Checkpoints
from .checkpoint.core import BaseCheckpoints
from .checkpoint.of_each_rank import OfEachRank
from .checkpoint.random_numbers import RandomStreams, random_state, set_random_state
from .data.on_device import OnDevice
from .data.sampler import GlobalBatchSampler
from .job.departure import Departure
from .job.failure import TrainError
from .job.group import Job, add_up
from .job.preemption import Preemption
from .job.sums import Purpose
from .replicas import share_buffers
from .reporting.outputs import profile_steps
from .reporting.steps import StepLog, StepMetrics

T = TypeVar("T")
_END: Any = object()  # where a loader has no more batches
OWN = ("position", "random")
"""Names of the parts of a checkpoint that the loop adds."""


@dataclass
class Position:
    """How far a training is: `step` steps in all, `epoch` whole epochs, and `batch` batches of the next one.

    `order` has what the order of the samples depends on, where a GlobalBatchSampler decides it.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    order: dict[str, int | bool] | None = None

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        numbers = [state[name] for name in ("step", "epoch", "batch")]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError(f"a position has whole numbers, got {numbers}")
        self.step, self.epoch, self.batch = numbers
        self.order = state["order"]


class TrainingLoop:
    """The block around a loop over batches.

        states = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        with TrainingLoop(job, states, save_every=100) as loop:
            for inputs, targets in loop.batches(loader, steps=1000):
                loss = job.global_mean(cross_entropy(model(inputs), targets, reduction="none"))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                loop.log(loss=loss, lr=scheduler.get_last_lr()[0], samples=64)
                scheduler.step()

    `states` has the parts of the training that a checkpoint keeps: every object with `state_dict` and
    `load_state_dict`, and plain data. The loop adds its position, and the random numbers of every rank. At
    the same number of ranks the training resumes bit by bit; at another number at the same position.

    `continues` says whether it resumed from a checkpoint of this run: then what job.out has of earlier steps
    belongs to it.

    At the end of each step, when the program asks for the next batch: the training ends with a checkpoint if
    a signal asked for it (Preemption), or goes on after one that is due; and garbage is collected, in the
    same steps on every rank, because the others wait for a rank that does so. The end of the block saves the
    last step. Nothing here waits for the device, but in a step that is logged or saved.
    """

    def __init__(
        self,
        job: Job,
        states: MutableMapping[str, Any],
        *,
        resume: bool | Path | Literal["if-any"] | None = None,
        checkpoints: BaseCheckpoints | None = None,
        save_every: int = 0,
        log_every: int = 10,
        collect_every: int = 50,
        profile: str = "",
        tensorboard: bool = False,
    ) -> None:
        """Resume from the newest checkpoint if `resume`, a collective call; TrainError if there is none.

        With "if-any", the default of a restarted job, the training starts at step 1 where there is none, and
        says so. `resume` may be the path of a checkpoint, or of the folder or run that has it: a new training
        goes on from there, and a restarted one from its own newest. `checkpoints` are Checkpoints(job,
        job.out) if none are given. `save_every`, `log_every` and `collect_every` are numbers of steps; 0:
        never, and for `collect_every` whenever Python decides. `profile` is that of profile_steps,
        `tensorboard` that of StepLog. Files go to job.out. Raises TrainError if the checkpoint is of another
        training.
        """
        if taken := [name for name in OWN if name in states]:
            raise TrainError(f"the loop keeps its own {taken[0]!r} in a checkpoint: take another name")
        self.job, self.states, self.position = job, states, Position()
        self.save_every, self.log_every, self.collect_every = save_every, log_every, collect_every
        self.checkpoints = checkpoints or Checkpoints(job, job.out)
        self._saved: int | None = None
        self._on_device = OnDevice(job.device)
        self._open = ExitStack()
        self.continues = self._resume(("if-any" if job.restart else False) if resume is None else resume)
        self.figures = StepLog(
            job, job.out, after_step=self.step if self.continues else 0, tensorboard=tensorboard
        )
        self._preemption = Preemption(job)
        self._departure = Departure(job)
        self._profile = profile_steps(profile, job, job.out, after_step=self.step)

    @property
    def step(self) -> int:
        """The number of the step that runs, from 1; outside of `batches`, how many steps are done."""
        return self.position.step

    @property
    def epoch(self) -> int:
        """The number of the epoch that runs, from 0: how many are done."""
        return self.position.epoch

    @property
    def due(self) -> bool:
        return self._is_due(self.step)

    def batches(
        self,
        loader: Iterable[T],
        *,
        steps: int | None = None,
        uneven: Literal["shortest", "longest"] = "shortest",
    ) -> Iterator[T]:
        """Yield the rest of the epoch, or with `steps` one epoch after the other until so many are done.

        Tensors are on the job's device; on a GPU their copy overlaps with the step before it, if they are
        pinned. Before an epoch, `set_epoch` of the loader's sampler is called. A training that resumes leaves
        out the batches of the epoch that are done. A GlobalBatchSampler starts after them, and so does a
        loader among the states, such as torchdata's StatefulDataLoader; of another they are read and dropped.

        Where ranks have unequally many batches, the epoch ends for all with the shortest; with `uneven`
        "longest" a rank that has none left gets its last batch with every tensor cut to 0 rows, which counts
        for nothing in global_mean. Ranks compare the lengths of their loaders before an epoch. Of a loader
        without a length, such as one of an IterableDataset, they ask each other before each step, and on a
        GPU the host then waits for the step before. Every rank must leave the loop in the same step.
        """
        if uneven not in {"shortest", "longest"}:
            raise ValueError(f"uneven is 'shortest' or 'longest', not {uneven!r}")
        while steps is None or self.step < steps:
            for batch in self._together(loader, longest=uneven == "longest"):
                self.position.step += 1
                self.position.batch += 1
                self._departure.in_step(self.step)
                moved = self._on_device(batch)
                self.figures.lap("data")
                yield moved
                self._end_step()
                if self.step == steps:
                    return
            if not self.position.batch:
                raise TrainError("the loader gave no batch in a whole epoch")
            self.position.epoch, self.position.batch = self.epoch + 1, 0
            if steps is None:
                return

    def lap(self, part: str) -> None:
        """Count the time since the last lap as that of `part`, "compute" or "optimizer", of this step."""
        self.figures.lap(part)

    def log(
        self,
        *,
        loss: torch.Tensor | float,
        lr: float,
        samples: int,
        tokens: int | None = None,
        gradient_norm: torch.Tensor | float | None = None,
    ) -> StepMetrics | None:
        """Write the figures of this step if it is due, else return None; every step may call it.

        `loss` is the mean over the global batch, which has so many `samples` and `tokens`. Tensors are read
        only if the step is due: to read one is to wait for the device.
        """
        if not self.due:
            return None
        norm = None if gradient_norm is None else _number(gradient_norm)
        return self.figures.step(
            self.step, loss=_number(loss), lr=lr, samples=samples, tokens=tokens, gradient_norm=norm
        )

    def save(self) -> None:
        """Save the steps so far, unless that is done; call it after the optimizer's step. A collective.

        Raises TrainError if a loss or a weight is not finite: such a checkpoint would push out the good ones.
        """
        if self._saved == self.step:
            return
        for part in self.states.values():
            if isinstance(part, nn.Module):
                share_buffers(part, self.job)
        self.checkpoints.save(self.step, self._parts())
        self._saved = self.step

    def __enter__(self) -> TrainingLoop:
        self._open.enter_context(self._preemption)
        self._profiled = self._open.enter_context(self._profile)
        gc.collect()  # what was loaded too: its tensors are mapped from a file, which then takes no space
        if self.collect_every and gc.isenabled():
            gc.disable()
            self._open.callback(gc.enable)
        self._open.push(self._save_the_last)
        self._departure.begin()
        self.figures.restart(wait=self._is_due(self.step + 1))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # With the error, if there is one: then Preemption must not wait for a message of another rank.
        try:
            self._open.__exit__(kind, error, trace)
        except RuntimeError as failed:
            self._departure.explain(failed)
            raise
        self._departure.explain(error)

    def _save_the_last(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._preemption.settle()
            self._departure.leave()
            add_up(self.job, Purpose.LEAVE, step=self.step)
            self.save()
            self.checkpoints.finish()

    def _resume(self, where: bool | Path | str) -> bool:
        """Load a checkpoint if one is wanted; returns whether it is of this run."""
        if not where:
            self.checkpoints.begin()
            return False
        parts, step = self._parts(), None
        elsewhere = Path(where) if where is not True and where != "if-any" else None
        if elsewhere is None or self.job.restart:
            step = self.checkpoints.load(parts, required=where is True)
        own = step is not None
        if elsewhere is not None and not own:
            step = self.checkpoints.load(parts, elsewhere)
            own = self.job.out.resolve() in elsewhere.resolve().parents
        if step is None:
            self.checkpoints.say("the training starts at step 1")
        self._saved = step if own else None
        for name in self.states:
            if not hasattr(self.states[name], "load_state_dict"):
                self.states[name] = parts[name]
        return own

    def _parts(self) -> dict[str, Any]:
        """Return everything that a checkpoint keeps; of what differs between the ranks, that of all."""
        each = {
            name: OfEachRank(self.job, part, other=partial(_load_first, part))
            for name, part in self.states.items()
            if isinstance(part, DataLoader)  # its workers' random numbers are seeded on each rank
        }
        return {**self.states, **each, "position": self.position, "random": RandomStreams(self.job)}

    def _together(self, loader: Iterable[T], *, longest: bool) -> Iterator[T]:
        """Yield what is left of the epoch: as many batches on every rank."""
        rest, before = self._rest_of_epoch(loader)
        if self.job.world_size == 1:
            yield from rest
            return
        mine = self._length(loader)
        of_all = self._length_for_all(mine, longest=longest)
        for number in itertools.count():
            if number == of_all:
                return
            batch = next(rest, _END)
            if batch is _END and number < mine:
                raise TrainError(f"the loader gave {number} batches, and its len() promised {mine}")
            self._preemption.begin_step(self.step + 1, has_batch=batch is not _END)
            if of_all is None:
                have = self._preemption.settle()
                if have == 0 or (have < self.job.world_size and not longest):
                    return
            if batch is _END:
                if before is _END:
                    raise TrainError("this rank has had no batch, so an empty one cannot be made for it")
                batch = _emptied(before)
            before = batch
            yield batch

    def _length(self, loader: Iterable[Any]) -> int:
        """Return how many batches the loader has left of the epoch; -1 where only reading it shows that."""
        sampler = getattr(loader, "batch_sampler", None)
        if isinstance(getattr(loader, "dataset", None), IterableDataset):  # whose length is a guess
            return -1
        try:
            whole = sampler.batches if isinstance(sampler, GlobalBatchSampler) else len(cast(Sized, loader))
        except (TypeError, NotImplementedError):
            return -1
        return max(0, whole - self.position.batch)

    def _length_for_all(self, mine: int, *, longest: bool) -> int | None:
        """Return how many batches the epoch has on every rank; None where a rank does not know its own."""
        without, total, square, _ = add_up(
            *(self.job, Purpose.EPOCH, float(mine < 0), float(mine), float(mine) ** 2)
        )
        if without:
            return None
        if square * self.job.world_size == total * total:
            return mine
        return (max if longest else min)(self.job.all_gather(mine, int, what="len of loader"))

    def _rest_of_epoch(self, loader: Iterable[T]) -> tuple[Iterator[T], T]:
        """Return what is left of the epoch, and the last batch that was read and dropped.

        To begin an iteration draws random numbers, and so does a batch that is read and dropped. Where the
        epoch began before, that has been done: the numbers that are drawn next are those of the next step.
        """
        read = self._at_the_epoch(loader)
        if not self.position.batch:
            return iter(loader), _END
        numbers = random_state(self.job.device)
        rest = iter(loader)
        dropped = deque(islice(rest, read), maxlen=1)
        set_random_state(numbers, self.job.device)
        return rest, dropped[0] if dropped else _END

    def _at_the_epoch(self, loader: Iterable[T]) -> int:
        """Tell the loader which epoch it is; returns how many batches must be read and dropped."""
        done = 0 if any(part is loader for part in self.states.values()) else self.position.batch
        sampler = getattr(loader, "batch_sampler", None)
        if isinstance(sampler, GlobalBatchSampler):
            if {**sampler.order, **(self.position.order or {})} != sampler.order:  # an older one has less
                raise TrainError(
                    f"the checkpoint is of a training with {self.position.order}, not {sampler.order}: "
                    "its position means nothing here"
                )
            self.position.order = sampler.order
            sampler.set_epoch(self.epoch, skip=done)
            return 0
        parts: list[Any] = [
            sampler,
            *(getattr(loader, name, None) for name in ("sampler", "dataset")),
            loader,
        ]
        for part in [part for part in parts if hasattr(part, "set_epoch")][:1]:
            part.set_epoch(self.epoch)
        return done

    def _is_due(self, step: int) -> bool:
        return self.log_every > 0 and step % self.log_every == 0

    def _end_step(self) -> None:
        self._profiled()
        if self.collect_every and self.step % self.collect_every == 0:
            gc.collect(1)  # the youngest objects alone take a thousandth of a second
        if self._preemption.ended_by_signal():
            self.save()
            self.checkpoints.finish()
            self._preemption.leave(f"saved step {self.step}")
        if self.save_every and self.step % self.save_every == 0:
            self.save()
        self.figures.restart(wait=self._is_due(self.step + 1))


def _load_first(part: Any, of_ranks: list[Any]) -> None:
    """Continue a loader at another number of ranks: every rank is at the same batch of an epoch."""
    part.load_state_dict(of_ranks[0])


def _emptied(batch: Any) -> Any:
    """Return a batch with every tensor cut to 0 rows."""
    return tree_map(lambda leaf: leaf[:0] if isinstance(leaf, torch.Tensor) and leaf.dim() else leaf, batch)


def _number(figure: torch.Tensor | float) -> float:
    return float(figure.detach() if isinstance(figure, torch.Tensor) else figure)
