"""What each step measured: steps.jsonl, one JSON object per step (docs/reference/metrics.md)."""

from __future__ import annotations

import resource
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..job.group import Job
from ..job.hardware import wait_for_gpu
from .metrics import MetricsFile
from .outputs import TensorBoard

FILE = "steps.jsonl"


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One line of steps.jsonl. Seconds are those of rank 0, by its host's clock; null is not known."""

    step: int  # optimizer steps since the beginning of the training, this one included
    loss: float  # mean over the global batch, before this step
    lr: float  # learning rate of the step
    gradient_norm: float | None  # 2-norm of all gradients, before clipping
    samples_per_second: float  # over all ranks
    tokens_per_second: float | None  # over all ranks; of models on sequences
    step_seconds: float  # without evaluations and checkpoints between steps
    data_seconds: float  # of it: waiting for the batch
    compute_seconds: float  # forward and backward, with the communication that they overlap
    optimizer_seconds: float  # waiting for the last gradients, clipping, and the update
    peak_memory_bytes: int  # of rank 0 so far: of the GPU if it has one, else resident memory
    time: float  # seconds since 1970


class StepLog:
    """Times the parts of each step on rank 0, and writes them with its figures to steps.jsonl.

        log = StepLog(job, job.out)
        for batch in loader:
            log.lap("data")
            ...
            log.lap("compute")
            ...
            log.step(step, loss=loss.item(), lr=lr, samples=64)
            ...                                   # evaluate, save
            log.restart()

    On a GPU the host runs ahead: a part has the time that the host spent on it, and the waiting is where the
    host first needs a result. Their sum, `step_seconds`, is right where this step and the step before it end
    with a result that the host needs, such as `loss.item()`. After another step, call `restart(wait=True)`.
    """

    def __init__(self, group: Job, out: Path, *, after_step: int = 0, tensorboard: bool = False) -> None:
        """Continue the file in `out` after `after_step`; an earlier run's later steps are set aside.

        `tensorboard` writes the records for TensorBoard as well, to `out`/tensorboard. Raises TrainError
        without that package.
        """
        self.group = group
        self._tensorboard = TensorBoard(out / "tensorboard") if tensorboard and group.rank == 0 else None
        self._file: MetricsFile | None = None
        if group.rank == 0:
            out.mkdir(parents=True, exist_ok=True)
            self._file = MetricsFile(out / FILE, after=after_step, key="step")
        self._seconds: dict[str, float] = {}
        self._at = time.perf_counter()

    def lap(self, part: str) -> None:
        """Count the time since the last lap or step as that of `part`: data, compute or optimizer."""
        now = time.perf_counter()
        self._seconds[part] = self._seconds.get(part, 0.0) + now - self._at
        self._at = now

    def restart(self, *, wait: bool = False) -> None:
        """Leave out the time since the last lap, which an evaluation or a checkpoint took.

        `wait`: first wait until the GPU has done all work so far, so that the next step is timed without it.
        """
        if wait:
            wait_for_gpu(self.group.device)
        self._seconds, self._at = {}, time.perf_counter()

    def step(
        self,
        step: int,
        *,
        loss: float,
        lr: float,
        samples: int,
        gradient_norm: float | None = None,
        tokens: int | None = None,
    ) -> StepMetrics:
        """Write the step, whose last part since the last lap was the optimizer's; returns the record.

        `samples` and `tokens` are those of the global batch. Every rank may call it, rank 0 writes.
        """
        self.lap("optimizer")
        seconds, self._seconds = self._seconds, {}
        whole = max(sum(seconds.values()), 1e-9)
        metrics = StepMetrics(
            step=step,
            loss=loss,
            lr=lr,
            gradient_norm=gradient_norm,
            samples_per_second=samples / whole,
            tokens_per_second=tokens / whole if tokens is not None else None,
            step_seconds=whole,
            data_seconds=seconds.get("data", 0.0),
            compute_seconds=seconds.get("compute", 0.0),
            optimizer_seconds=seconds["optimizer"],
            peak_memory_bytes=peak_memory(self.group.device),
            time=time.time(),
        )
        if self._file:
            self._file.append(metrics)
        if self._tensorboard:
            known = {f"step/{name}": value for name, value in asdict(metrics).items() if value is not None}
            self._tensorboard.add(known, step)
        return metrics


def peak_memory(device: torch.device) -> int:
    """Return the most bytes that this process has used so far: of the GPU `device`, else resident memory."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
