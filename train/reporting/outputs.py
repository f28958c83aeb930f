"""Optional output files of a run: for TensorBoard, and a profile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, schedule

from ..job.failure import TrainError
from ..job.group import Job


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


def wrong_steps(text: str) -> list[str]:
    """Return an error line if `text` is neither FIRST:LAST, two steps counted from 1, nor empty."""
    first, _, last = text.partition(":")
    if not text or (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        return []
    return [f"--profile must be FIRST:LAST, two steps counted from 1, such as 10:15, got {text}"]


@contextmanager
def profile_steps(text: str, group: Job, out: Path, *, after_step: int = 0) -> Iterator[Callable[[], None]]:
    """Profile the steps `text`, FIRST:LAST or "" for none, on this rank; call what it yields after each step.

    Each rank writes a trace, which https://ui.perfetto.dev shows, and a table to `out`/profile when step LAST
    is done. `after_step` is the number of steps that a continued training has done before. One step before
    FIRST the profiler warms up. Raises TrainError for another `text`.
    """
    if wrong := wrong_steps(text):
        raise TrainError(wrong[0])
    first, last = (int(step) for step in (text or "0:0").split(":"))
    if first <= after_step:
        yield lambda: None
        return
    wait = first - after_step - 1
    warm_up = min(wait, 1)
    cuda = [ProfilerActivity.CUDA] if group.device.type == "cuda" else []
    with profile(
        activities=[ProfilerActivity.CPU, *cuda],
        schedule=schedule(wait=wait - warm_up, warmup=warm_up, active=last - first + 1, repeat=1),
        on_trace_ready=lambda profiler: _write(profiler, out / "profile", group),
    ) as profiler:
        yield profiler.step


def _write(profiler: profile, folder: Path, group: Job) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = folder / f"rank-{group.rank:04d}"
    profiler.export_chrome_trace(str(name.with_suffix(".json")))
    name.with_suffix(".txt").write_text(
        profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=30)
    )
