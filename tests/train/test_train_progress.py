"""What the training writes to stdout, where a terminal shows it and where none does."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from muster.train.job.ranks import Ranks
from muster.train.reporting.terminal import Terminal

FIRST = Ranks(0, 2, 0, 2, "mpirun")
SECOND = Ranks(1, 2, 1, 2, "mpirun")


def test_without_a_terminal_there_are_only_lines(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Terminal(FIRST, {})
    assert not progress.bar_is_due()
    progress.line("epoch 1/2")
    assert capsys.readouterr().out == "epoch 1/2\n"


def test_the_ranks_but_the_first_are_silent(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Terminal(SECOND, {"MUSTER_TERMINAL": "80"})
    assert not progress.bar_is_due()
    progress.line("epoch 1/2")
    assert capsys.readouterr().out == ""


def test_a_bar_ends_in_a_carriage_return_and_a_line_clears_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = Terminal(FIRST, {"MUSTER_TERMINAL": "80"})
    assert progress.bar_is_due()
    progress.bar("epoch 1/2", 0.25, "loss 0.312")
    bar = "epoch 1/2 [#####...............] loss 0.312"
    assert capsys.readouterr().out == bar + "\r"
    progress.line("done")
    assert capsys.readouterr().out == " " * len(bar) + "\rdone\n"


def test_a_bar_leaves_the_last_column_free(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = Terminal(FIRST, {"MUSTER_TERMINAL": "20"})
    progress.bar("epoch 1/2", 0.25, "loss 0.312")
    assert len(capsys.readouterr().out.rstrip("\r")) == 19


def test_bars_are_drawn_at_most_ten_times_a_second(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("muster.train.reporting.terminal.time", SimpleNamespace(monotonic=lambda: now))
    progress = Terminal(FIRST, {"MUSTER_TERMINAL": "80"})
    progress.bar("epoch 1/2", 0.25, "")
    now += 0.09
    assert not progress.bar_is_due()
    now += 0.02
    assert progress.bar_is_due()
    capsys.readouterr()
