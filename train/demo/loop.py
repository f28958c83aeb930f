"""The training from beginning to end: train, evaluate, record and save, once per epoch."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..checkpoint.checkpoints import Check, Checkpoints, Resumed
from ..job.failure import TrainError
from ..job.preemption import Preemption
from ..reporting.metrics import EpochMetrics, MetricsFile
from ..reporting.outputs import LOG, TensorBoard, profile_steps, profiled
from ..reporting.steps import StepLog
from ..reporting.terminal import Terminal
from .config import LAST_EPOCH, TrainConfig
from .trainer import Step, Trainer

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


def fit(trainer: Trainer, evaluate: Callable[[], float], config: TrainConfig, terminal: Terminal) -> float:
    """Train up to `config.epochs`, from the beginning or a checkpoint; returns the last result of `evaluate`.

    `evaluate`, a collective, gives the accuracy on held-out samples. Everything is written to `config.out`.
    """
    group = trainer.group
    checkpoints = Checkpoints(group, config.out, keep=config.keep, say=terminal.line)
    # Before setting aside an earlier run's files, because the package may be missing.
    tensorboard = TensorBoard(config.out / "tensorboard") if config.tensorboard and group.rank == 0 else None
    own = continue_training(trainer, config, checkpoints, terminal)
    metrics_file = None
    if group.rank == 0:
        metrics_file = open_metrics(config.out, trainer.epoch if own else 0, terminal)

    log = StepLog(group, config.out, after_step=trainer.steps if own else 0, tensorboard=config.tensorboard)
    trainer.lap = log.lap

    def save() -> None:
        checkpoints.save(trainer.steps, {**trainer.state(checkpoints.writers), "config": config.as_text()})

    steps = "" if config.profile == LAST_EPOCH else config.profile
    with (
        Preemption(group) as preemption,
        profile_steps(steps, group, config.out, after_step=trainer.steps) as step_profiled,
    ):
        after_step = AfterStep(trainer, config, terminal, log, preemption, save, step_profiled)
        accuracy = evaluate()
        while trainer.epoch < config.epochs:
            started = time.perf_counter()
            log.restart()
            left = len(trainer.data) - trainer.batch * trainer.sampler.batch_size  # fewer if it was resumed
            last = (
                config.profile == LAST_EPOCH and trainer.epoch + 1 == config.epochs
            )  # by then caches are warm
            with profiled(config.out / "profile", group) if last else nullcontext():
                loss = trainer.run_epoch(after_step)
            rate = left / (time.perf_counter() - started)
            accuracy = evaluate()
            metrics = EpochMetrics(
                trainer.epoch, trainer.steps, loss, trainer.last_learning_rate, accuracy, rate, time.time()
            )
            if metrics_file:
                metrics_file.append(metrics)
            if tensorboard:
                tensorboard.add(asdict(metrics), trainer.steps)
            save()
            report(metrics, config.epochs, terminal)
            after_step.leave_if_asked()
    return accuracy


def report(metrics: EpochMetrics, epochs: int, terminal: Terminal) -> None:
    """Write the line of an epoch."""
    epoch = f"epoch {metrics.epoch:>{len(str(epochs))}}/{epochs}"
    loss, accuracy, rate = metrics.loss, metrics.accuracy, metrics.samples_per_second
    LOG.info("%s  loss %.6f  accuracy %.4f  %.0f samples/s over all ranks", epoch, loss, accuracy, rate)
    terminal.line(f"{epoch}  loss {loss:.4f}  accuracy {accuracy:.4f}  {rate:.0f} samples/s")


@dataclass
class AfterStep:
    """What happens after each step: progress, its figures, a profile, a checkpoint, or the end."""

    trainer: Trainer
    config: TrainConfig
    terminal: Terminal
    log: StepLog
    preemption: Preemption
    save: Callable[[], None]
    profiled: Callable[[], None]
    asked: bool = False

    def __call__(self, step: Step) -> None:
        """Handle a step; the trainer calls this on every rank."""
        self._write(step)
        self.profiled()
        show(step, self.trainer.epoch, self.config.epochs, self.terminal)
        self.asked = self.preemption.asked() or self.asked
        due = self.config.save_every and self.trainer.steps % self.config.save_every == 0
        if (due or self.asked) and not self.trainer.epoch_is_done:
            self.save()
            self.leave_if_asked()
        self.log.restart(wait=self._writes(self.trainer.steps + 1))

    def _writes(self, step: int) -> bool:
        """Whether the figures of a step are due."""
        return self.config.log_every > 0 and step % self.config.log_every == 0

    def _write(self, step: Step) -> None:
        """Write the figures of the step when they are due; that call is a collective."""
        if self._writes(self.trainer.steps):
            loss = self.trainer.group.all_reduce_sum(step.loss_sum.item())[0] / step.batch_size
            self.log.step(
                self.trainer.steps,
                loss=loss,
                lr=self.trainer.last_learning_rate,
                samples=step.batch_size,
                gradient_norm=step.gradient_norm,
            )

    def leave_if_asked(self) -> None:
        """End the rank if a signal asked for it and the checkpoint is saved."""
        if self.asked:
            self.preemption.leave(f"saved step {self.trainer.steps}")


def show(step: Step, epoch: int, epochs: int, terminal: Terminal) -> None:
    """Draw the progress bar, when it is due."""
    if terminal.bar_is_due():
        terminal.bar(
            f"epoch {epoch + 1}/{epochs}",
            step.batch / step.batches,
            f"loss {step.mean_loss:.3f}  {step.samples_per_second:.0f} samples/s",
        )


def where_to_begin(
    config: TrainConfig, checkpoints: Checkpoints, terminal: Terminal, check: Check
) -> Resumed | None:
    """Return the checkpoint to continue from, None to start afresh; prints the choice.

    One that `check` refuses ends the job, with nothing changed on a disk.
    A restarted job resumes from its own newest checkpoint, or, if it has none yet, from `--resume`.
    """
    newest = checkpoints.newest(check) if config.resume == "auto" or config.restart > 0 else None
    if newest is None and config.resume not in {"", "auto"}:
        return checkpoints.chosen(Path(config.resume), check)
    if newest is None and (config.resume or config.restart):
        terminal.line(f"no checkpoint in {checkpoints.folder} on any host: starting afresh")
    if newest is None:
        checkpoints.begin()
    return newest


def continue_training(
    trainer: Trainer, config: TrainConfig, checkpoints: Checkpoints, terminal: Terminal
) -> bool:
    """Put `trainer` where the training begins; returns whether that is at a checkpoint of this run.

    No tensor of the checkpoint is left then. Tensors of a checkpoint are mapped from its file; while such a
    tensor exists, removing the file frees no disk space.
    """

    def check(state: dict[str, Any]) -> None:
        refuse_another_training(config, state)
        trainer.check(state)

    resumed = where_to_begin(config, checkpoints, terminal, check)
    if resumed is None:
        return False
    trainer.restore(resumed.state)
    own = resumed.own
    del resumed
    gc.collect()  # torch's functions leave cycles that refer to the tensors
    return own


def refuse_another_training(config: TrainConfig, state: dict[str, Any]) -> None:
    """Raise TrainError if the checkpoint was made with options that must not change."""
    before, now = state.get("config"), config.as_text()
    if before is None:
        raise TrainError(
            "the checkpoint is of another program; give this training a folder of its own: --out"
        )
    changed = [name for name in SAME_WHEN_RESUMED if before.get(name) != now[name]]
    if changed:
        raise TrainError(
            "\n".join(
                f"the checkpoint is of a training with --{name.replace('_', '-')} {before.get(name)}, "
                f"not {now[name]}; continue with the same"
                for name in changed
            )
        )


def open_metrics(out: Path, after_epoch: int, terminal: Terminal) -> MetricsFile:
    """Make the run's directory and open its metrics.jsonl: anew, or to continue after `after_epoch`."""
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
