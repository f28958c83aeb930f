"""Progress: a bar on a terminal, a line for each tenth elsewhere, nothing for what is small."""

from __future__ import annotations

import io

from muster.deploy.console.progress import Progress


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
    assert lines[0].startswith("data.tar [----") and "100 of 100 MB" in lines[-1]


def test_on_a_terminal_a_bar_is_drawn_and_removed() -> None:
    stream = Terminal()
    with Progress(stream, "data.tar") as progress:
        progress.add(5_000_000, 10_000_000)
    assert "data.tar" in stream.getvalue() and "50%" in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[2K")


def test_what_is_small_is_not_shown() -> None:
    stream = Terminal()
    with Progress(stream, least=1000) as progress:
        progress.show(1, 999)
    assert stream.getvalue() == ""
