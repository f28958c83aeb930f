"""Progress: a bar on a terminal, a line for each tenth elsewhere, nothing for what is small."""

from __future__ import annotations

import io

from muster.deploy.console.progress import Progress, line


class Terminal(io.StringIO):
    """A terminal that keeps what is drawn."""

    def isatty(self) -> bool:
        return True


def test_elsewhere_there_is_a_line_for_each_tenth() -> None:
    stream = io.StringIO()
    with Progress(stream, "data.tar") as progress:
        for _ in range(100):
            progress.add(1_000_000, 100_000_000)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 11
    assert lines[0].startswith("data.tar: 1 %, ") and "100 of 100 MB" in lines[-1]


def test_what_is_no_bytes_is_counted_in_its_unit() -> None:
    stream = io.StringIO()
    with Progress(stream, "checking", unit="hosts") as progress:
        progress.show(8, 16)
        progress.show(9, 16)
        progress.show(16, 16)
    assert stream.getvalue().splitlines() == [
        "checking: 50 %, 8 of 16 hosts",
        "checking: 100 %, 16 of 16 hosts",
    ]


def test_a_line_tells_the_speed_and_is_full_where_there_is_nothing() -> None:
    assert line(392_000_000, 784_000_000, 4) == "50 %, 392 of 784 MB, 98 MB/s"
    assert line(0, 0, 0) == "100 %, 0 of 0 MB, 0 MB/s"


def test_on_a_terminal_a_bar_is_drawn_and_removed() -> None:
    stream = Terminal()
    with Progress(stream, "data.tar") as progress:
        progress.add(5_000_000, 10_000_000)
    assert "data.tar" in stream.getvalue() and "50%" in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[2K")


def test_on_a_terminal_the_words_before_the_bar_may_change_and_are_cut() -> None:
    stream = Terminal()
    with Progress(stream, "cpu", unit="steps") as progress:
        progress.show(1, 9, "[node 2/9] COPY a /")
        progress.show(2, 9, "[node 3/9] RUN " + "x" * 200 + "\x1b[2J")
    shown = stream.getvalue()
    assert "[node 2/9] COPY a /" in shown and "2/9 steps" in shown
    assert "xxx…" in shown and "x" * 50 not in shown


def test_what_is_small_is_not_shown() -> None:
    stream = Terminal()
    with Progress(stream, least=1000) as progress:
        progress.show(1, 999)
    assert stream.getvalue() == ""
