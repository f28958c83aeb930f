"""Optional output files of a run: for TensorBoard, a profile, a log of every rank."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from ..job.failure import TrainError
from ..job.group import Group

LOG = logging.getLogger("train")


class TensorBoard:
    """Writes figures by name to `folder`: `tensorboard --logdir OUT` shows them."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an optional dependency
        except ImportError as error:
            raise TrainError(
                "--tensorboard needs the package tensorboard: pip install tensorboard"
            ) from error
        self.writer = SummaryWriter(folder)

    def add(self, figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()


@contextmanager
def profiled(folder: Path, group: Group) -> Iterator[None]:
    """Profile the block on this rank: write a trace, which https://ui.perfetto.dev shows, and a table."""
    folder.mkdir(parents=True, exist_ok=True)
    cuda = [ProfilerActivity.CUDA] if group.device.type == "cuda" else []
    with profile(activities=[ProfilerActivity.CPU, *cuda]) as profiler:
        yield
    name = folder / f"rank-{group.rank:04d}"
    profiler.export_chrome_trace(str(name.with_suffix(".json")))
    name.with_suffix(".txt").write_text(
        profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=30)
    )


def log_to(folder: Path, group: Group) -> None:
    """Send what this rank writes to LOG into a file named after its rank."""
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / f"rank-{group.rank:04d}.log", mode="w")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    LOG.propagate = False
    LOG.info(
        "%s on %s, backend %s, device %s", group.ranks, group.hosts[group.rank], group.backend, group.device
    )
    LOG.info("torch %s, %d threads", torch.__version__, torch.get_num_threads())
