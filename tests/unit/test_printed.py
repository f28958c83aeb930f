"""The figures in lines that programs print: of status, of top and of the page of a run."""

from __future__ import annotations

import pytest

from muster.deploy.console.printed import PrintedFigures, figures_of, seconds_left


@pytest.mark.parametrize(
    ("line", "figures"),
    [
        ("step 120 loss 0.35", PrintedFigures(120, 0.35)),
        ("Iteration: 7, loss=1e-3", PrintedFigures(7, 1e-3)),
        ("step 250/1000 loss 2.5", PrintedFigures(250, 2.5, 0.25)),
        ("steps: 3 of 12", PrintedFigures(3, None, 0.25)),
        ("epoch 3/10 loss 0.2", PrintedFigures(None, 0.2, 0.3)),
        ("epoch 3/10  step 50/100", PrintedFigures(50, None, 0.25)),
        ("epoch 3/10  step 5000", PrintedFigures(5000)),
        ("step 9/0", PrintedFigures(9)),
        ("step 30/20", PrintedFigures(30, None, 1.0)),
        ("step 4 loss 1e999", PrintedFigures(4)),  # JSON has no infinity
        ("stepping stone, no loss of data", PrintedFigures()),
    ],
)
def test_a_line_has_a_step_a_loss_and_how_much_is_done(line: str, figures: PrintedFigures) -> None:
    found = figures_of(line)
    assert found._replace(done=None) == figures._replace(done=None)
    assert found.done == (None if figures.done is None else pytest.approx(figures.done))


def test_the_time_that_is_left_follows_from_the_pace_so_far() -> None:
    assert seconds_left(0.25, 60.0) == pytest.approx(180.0)
    assert seconds_left(0.75, 60.0, before=0.25) == pytest.approx(30.0)
    assert seconds_left(1.0, 60.0) == 0.0
    assert [seconds_left(*known) for known in ((None, 60.0), (0.001, 60.0), (0.5, 0.0))] == [None] * 3
    assert seconds_left(0.5, 60.0, before=0.5) is None
