"""What a run leaves beside its metrics, where asked for: TensorBoard's, a profile, a log of every rank."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from .errors import TrainError
from .group import Group

LOG = logging.getLogger("train")


class TensorBoard:
    """Shows figures by their names: `tensorboard --logdir OUT`."""

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
    """Write what the block did on this rank: a trace that https://ui.perfetto.dev shows, and a table."""
    folder.mkdir(parents=True, exist_ok=True)
    cuda = [ProfilerActivity.CUDA] if group.device.type == "cuda" else []
    with profile(activities=[ProfilerActivity.CPU, *cuda]) as found:
        yield
    name = folder / f"rank-{group.rank:04d}"
    found.export_chrome_trace(str(name.with_suffix(".json")))
    name.with_suffix(".txt").write_text(
        found.key_averages().table(sort_by="self_cpu_time_total", row_limit=30)
    )


def log_to(folder: Path, group: Group) -> None:
    """Have this rank write down what it does, under its number; LOG is the logger."""
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
