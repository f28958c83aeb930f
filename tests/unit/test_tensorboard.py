"""examples/run_to_tensorboard.py: which numbers of a run it writes, at which step, in which folder."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.runs import BEGAN, JOB, write_run

SCRIPT = Path(__file__).parents[2] / "examples" / "run_to_tensorboard.py"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str, float, int, float | None]]:
    """What the script writes: folder, tag, value, step, time. The package tensorboard is not needed."""
    scalars: set[tuple[str, str, float, int, float | None]] = set()

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            self.folder = folder

        def add_scalar(self, tag: str, value: float, step: int, at: float | None) -> None:
            scalars.add((self.folder, tag, value, step, at))

        def close(self) -> None:
            scalars.add((self.folder, "closed", 0, 0, None))

    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    for name in ("torch", "torch.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return scalars


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, boards: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["run_to_tensorboard.py", str(folder), str(boards)])
    runpy.run_path(str(SCRIPT), run_name="__main__")


def test_metrics_steps_and_samples_are_curves_with_their_steps(
    tmp_path: Path, written: set[tuple[str, str, float, int, float | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(monkeypatch, write_run(tmp_path, seconds=10), tmp_path / "boards")
    job = tmp_path / "boards" / JOB
    assert (f"{job}/job", "steps/lr", 0.1, 20, None) in written
    assert (f"{job}/job", "metrics/accuracy", 1 - 1 / 9, 8, None) in written
    assert (f"{job}/node2", "samples/memory_total", 16 << 30, 4, BEGAN + 4) in written
    assert {folder for folder, tag, *_ in written if tag == "closed"} == {
        *(f"{job}/job", f"{job}/node1", f"{job}/node2")
    }


def test_a_host_cannot_choose_another_folder_and_a_cut_file_is_read_to_its_end(
    tmp_path: Path, written: set[tuple[str, str, float, int, float | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path, seconds=10)
    samples = [{"at": BEGAN, "host": name, "load": 1.0} for name in ("../../x", "..", "/etc")]
    lines = "".join(f"{json.dumps(sample)}\n" for sample in samples)
    (folder / "samples.jsonl").write_text(lines + '{"at": 1')
    run(monkeypatch, folder, tmp_path / "boards")
    assert sum(tag == "samples/load" for _, tag, *_ in written) == 3
    for place, *_ in written:
        assert Path(place).resolve().is_relative_to(tmp_path / "boards" / JOB)
