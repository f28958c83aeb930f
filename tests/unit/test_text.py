"""Text for people: tables."""

from __future__ import annotations

from muster.deploy.console.text import table


def test_columns_are_as_wide_as_their_widest_cell_and_numbers_are_to_the_right() -> None:
    rows = [("from", "node1", ""), ("node2", "31", "\x1b[2J")]
    assert table(rows) == ["from   node1", "node2  31     ␛[2J"]
    assert table(rows, left=1) == ["from   node1", "node2     31  ␛[2J"]
    assert table([]) == []
