"""What the terminal shows of remote output."""

from __future__ import annotations

import errno
import io
import re
from pathlib import Path

import pytest

from muster.deploy.cli.option_values import ranks
from muster.deploy.core.errors import UsageError
from muster.deploy.core.text.screen import Screen
from muster.deploy.core.text.terminal import harmless
from tests.waiting import wait_until


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
        ("\x1b[1;32mloss\x1b[m \x1b[38;5;208m3\x1b[0m\x1b[3", "loss 3"),  # colours; the text was cut
        ("\x1b[0\x1b[mm", "␛[0m"),
        ("\x1b[?25l\x1b[2A\x1b[2K\x1bc", "␛[?25l␛[2A␛[2K␛c"),
    ],
)
def test_remote_output_cannot_drive_the_terminal(text: str, shown: str) -> None:
    assert harmless(text) == shown


@pytest.mark.parametrize("text", ["5-2", "0,7-6"])
def test_a_range_of_ranks_goes_up(text: str) -> None:
    with pytest.raises(UsageError, match=f"--rank {text}: .* is not a range; write"):
        ranks(text)


def test_lines_carry_rank_and_host() -> None:
    stream = io.StringIO()
    Screen(stream).output(3, "node2", "out", "hello\n")
    assert stream.getvalue() == "[3 node2] hello\n"


def test_a_screen_that_cannot_be_written_to_ends_no_job_and_says_why() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as stream:
        screen = Screen(stream)
        for _ in range(2):
            screen.output(0, "node1", "out", "hello\n")
        screen.say("DONE")
        screen.close()
        assert screen.error is not None
        assert screen.error.errno == errno.ENOSPC


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
    wait_for(stream, "\r\x1b[K[1 node1] hello\n[0 node1] 50 %")
    screen.close()
    assert stream.getvalue().endswith("\r\x1b[K")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("NO_COLOR", "1")
    return Terminal()


def shown(terminal: Terminal) -> list[str]:
    return [line.rpartition("\x1b[K")[2] for line in terminal.getvalue().split("\n")]


def test_equal_lines_of_many_ranks_are_one(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "muster.deploy.core.text.screen.WINDOW_SECONDS", 300.0
    )  # however long the next lines take to come
    screen = Screen(terminal)
    for rank in range(6):
        screen.output(rank, "node1", "out", "loading\n" if rank == 4 else "loading\nready\n")
    screen.output(4, "node1", "err", "ValueError: boom\n")
    screen.close()
    assert shown(terminal)[:3] == ["[0-5] loading", "[0-3,5] ready", "[4 node1] ValueError: boom"]


def wait_for(terminal: Terminal, end: str) -> None:
    """Until the terminal shows this last; one line is written in several pieces."""
    wait_until(lambda: terminal.getvalue().endswith(end), lambda: f"{end!r} after {terminal.getvalue()!r}")


def test_no_label_is_red(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR")
    screen = Screen(terminal)
    for rank in range(12):
        screen.output(rank, "node1", "out", f"{rank}\n")
    screen.close()
    assert len(re.findall(r"\x1b\[\d+m\[", terminal.getvalue())) == 12
    assert not re.search(r"\x1b\[(31|35|91|95)m", terminal.getvalue())


def test_a_terminal_gets_only_colours(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {
        "\x1b[32mloss\x1b[0m 3": "\x1b[32mloss\x1b[0m 3",
        "\x1b[1;38;2;180;60;0mwarm\x1b[0m": "\x1b[1;38;2;180;60;0mwarm\x1b[0m",
        "\x1b[31mred to its end": "\x1b[31mred to its end\x1b[0m",
        "\x1b[8mhidden \x1b[5mblinks": "hidden blinks",
        "\x1b[2J\x1b[32m\x1b]0;x\x07\x1b[0m": "␛[2J\x1b[32m␛]0;x␇\x1b[0m",
        "\x1b[0\x1b[1mm": "\x1b[1mm\x1b[0m",
    }
    monkeypatch.delenv("NO_COLOR")
    screen, pipe = Screen(terminal), io.StringIO()
    for line in lines:
        screen.output(0, "node1", "out", f"{line}\n")
        Screen(pipe).output(0, "node1", "out", f"{line}\n")
    screen.close()
    shown = terminal.getvalue().splitlines()
    assert [line.partition("\x1b[0m ")[2] for line in shown] == [*lines.values()]
    assert "\x1b" not in pipe.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    screen = Screen(plain)
    screen.output(0, "node1", "out", "\x1b[32mloss\x1b[0m 3\n")
    screen.close()
    assert plain.getvalue() == "[0 node1] loss 3\n"


def test_our_lines_break_between_words(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = f"/home/{'x' * 90}/logs"
    Screen(terminal).say(
        "job 20261125-171952-0eca: 6 ranks on 1 host with mpirun (Open MPI 5.0.11), rendezvous at 10.0.0.1\n"
        f"        logs: {path}\n        | {'word ' * 20}"
    )
    assert shown(terminal)[:-1] == [
        "job 20261125-171952-0eca: 6 ranks on 1 host with mpirun (Open MPI 5.0.11),",
        "        rendezvous at 10.0.0.1",
        f"        logs: {path}",
        f"        | {'word ' * 14}".rstrip(),
        f"        | {'word ' * 6}",
    ]


def test_a_file_gets_our_own_lines_as_they_are() -> None:
    stream = io.StringIO()
    Screen(stream).say("word " * 40)
    assert stream.getvalue() == f"{'word ' * 40}\n"


def test_lines_do_not_wait_for_ever(terminal: Terminal) -> None:
    Screen(terminal).output(0, "node1", "out", "alone\n")
    wait_for(terminal, "alone\n")
    assert shown(terminal)[0] == "[0 node1] alone"


def test_our_own_words_come_after_what_was_printed_before(terminal: Terminal) -> None:
    screen = Screen(terminal)
    screen.output(0, "node1", "out", "last\n")
    screen.say("FAILED")
    assert shown(terminal)[:2] == ["[0 node1] last", "FAILED"]


def test_few_lines_wait_when_ranks_print_much(terminal: Terminal) -> None:
    screen = Screen(terminal)
    for rank in (0, 1):
        screen.output(rank, "node1", "out", "line\n" * 50_000)
    assert len(screen._waiting) == 0
    assert terminal.getvalue().count("line") == 100_000


def test_where_a_program_reads_every_line_stands_for_itself() -> None:
    stream = io.StringIO()
    screen = Screen(stream)
    for rank in (0, 1):
        screen.output(rank, "node1", "out", "same\n")
    assert stream.getvalue() == "[0 node1] same\n[1 node1] same\n"


def test_only_some_ranks_are_shown() -> None:
    stream = io.StringIO()
    screen = Screen(stream, ranks("0,2-3"))
    for rank in range(5):
        screen.output(rank, "node1", "out", "x\n")
    assert stream.getvalue() == "[0 node1] x\n[2 node1] x\n[3 node1] x\n"


@pytest.mark.parametrize("text", ["a", "1-", "-1", "1,,2", "1;2"])
def test_a_filter_that_names_no_ranks_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--rank"):
        ranks(text)


def test_of_a_flood_the_screen_shows_some_lines_and_says_how_many_it_left_out() -> None:
    stream = io.StringIO()
    screen = Screen(stream, may_drop=True)
    for _ in range(20):
        screen.output(0, "node1", "out", "x\n" * 32_768)
    screen.say("FAILED")
    lines = stream.getvalue().splitlines()
    left_out = [int(line[1:].split()[0]) for line in lines if "left out here" in line]
    assert lines.count("[0 node1] x") + sum(left_out) == 20 * 32_768
    assert lines[-1] == "FAILED" and "left out" in lines[-2]
    assert sum(left_out) > 0


def test_lines_that_come_slower_are_all_shown() -> None:
    stream = io.StringIO()
    screen = Screen(stream, may_drop=True)
    for number in range(50):
        screen.output(0, "node1", "out", f"{number}\r\n" * 100)
    screen.close()
    assert len(stream.getvalue().splitlines()) == 5000
