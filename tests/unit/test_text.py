"""Text for people: tables, and lines that are divided for a terminal."""

from __future__ import annotations

from muster.deploy.core.text.text import table, wrapped


def test_columns_are_as_wide_as_their_widest_cell_and_numbers_are_to_the_right() -> None:
    rows = [("from", "node1", ""), ("node2", "31", "\x1b[2J")]
    assert table(rows) == ["from   node1", "node2  31     ␛[2J"]
    assert table(rows, left=1) == ["from   node1", "node2     31  ␛[2J"]
    assert table([]) == []


def test_a_line_is_divided_between_words_without_blanks_at_the_ends() -> None:
    line = "ERROR   node2: Connection refused  [ssh.port-refused]"
    assert wrapped(line, 36) == ["ERROR   node2: Connection refused", "        [ssh.port-refused]"]
    assert wrapped(line, 80) == [line]


def test_a_number_stays_with_its_unit() -> None:
    assert wrapped("node3: no answer within 10 s; look there", 26) == [
        "node3: no answer within",
        "        10 s; look there",
    ]
