"""The page "Bring your own model": five changes, and the script runs after each of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.train.forked import run_script
from tests.train.own_model import changed, stages

STAGES = stages()
SHARED = 4  # from this change on, the losses are those of the whole batch
ONE_WRITER = 5


def losses(tmp_path: Path, stage: int, ranks: int) -> list[list[float]]:
    """Run the script after so many changes; returns the losses that each rank printed."""
    script = tmp_path / "train.py"
    script.write_text(STAGES[stage])
    out = tmp_path / f"{ranks}-ranks"
    printed = run_script(script, ranks, out=out)
    assert torch.load(out / "model.pt", weights_only=True)
    return [[float(loss) for loss in re.findall(r"epoch \d, loss (\S+)", text)] for text in printed]


def test_there_are_five_changes() -> None:
    assert len(STAGES) == 1 + 5


@pytest.mark.parametrize("stage", range(6))
def test_the_script_runs_after_each_change(tmp_path: Path, stage: int) -> None:
    (alone,) = losses(tmp_path, stage, 1)
    assert len(alone) == 5
    assert alone[-1] < alone[0] / 2
    if stage == 0:
        return
    first, *others = losses(tmp_path, stage, 3 if stage >= SHARED else 2)
    assert [len(other) for other in others] == ([0, 0] if stage == ONE_WRITER else [5] * len(others))
    if stage >= SHARED:
        assert first == pytest.approx(alone, abs=1e-5)


def test_a_change_that_does_not_fit_is_refused() -> None:
    with pytest.raises(AssertionError, match="not once"):
        changed("a = 1\n", "-a = 2\n+a = 3\n")
