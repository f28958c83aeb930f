"""What the terminal shows of remote output."""

from __future__ import annotations

import io

import pytest

from deploy.screen import Screen, harmless


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext", "plain\ttext"),
        ("\x1b]0;owned\x07", "␛]0;owned␇"),
        ("\x9b2J", "\ufffd2J"),
        ("del\x7f", "del␡"),
        ("broken \udcff byte", "broken ? byte"),
        ("ümlaut 漢字", "ümlaut 漢字"),
    ],
)
def test_remote_output_cannot_drive_the_terminal(text: str, shown: str) -> None:
    assert harmless(text) == shown


def test_lines_carry_rank_and_host() -> None:
    stream = io.StringIO()
    Screen(stream).output(3, "node2", "out", "hello\n")
    assert stream.getvalue() == "[3 node2] hello\n"


def test_progress_is_for_terminals() -> None:
    stream = io.StringIO()
    Screen(stream).output(0, "node1", "out", "50 %\r")
    assert stream.getvalue() == ""


def test_on_a_terminal_progress_stays_below_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    screen = Screen(stream)
    screen.output(0, "node1", "out", "50 %\r")
    screen.output(1, "node1", "out", "hello\n")
    assert stream.getvalue().endswith("\r\x1b[K[1 node1] hello\n[0 node1] 50 %")
    screen.close()
    assert stream.getvalue().endswith("\r\x1b[K")
