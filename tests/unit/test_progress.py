"""Progress: one live line on a terminal, now and then a line elsewhere, nothing for a quick command."""

from __future__ import annotations

import io
import itertools

import pytest

from muster.deploy.core.text import progress as module
from muster.deploy.core.text.columns import cut
from muster.deploy.core.text.live_line import ERASE, LiveLine, live_line
from muster.deploy.core.text.progress import Progress, counted
from muster.deploy.core.text.screen import Screen
from muster.deploy.core.text.terminal import HarmlessStream
from tests.waiting import wait_until


class Terminal(io.StringIO):
    """A terminal of 80 columns that keeps what is drawn."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is shown without delay."""
    monkeypatch.delenv(module.VARIABLE)
    monkeypatch.setattr(module, "TURN_SECONDS", 0.001)
    monkeypatch.setattr(module, "TERMINAL_SECONDS", 0.0)
    monkeypatch.setattr(module, "PIPE_SECONDS", 0.0)


def wait_for(stream: io.StringIO, text: str) -> None:
    wait_until(lambda: text in stream.getvalue(), lambda: f"{text!r} in {stream.getvalue()!r}")


def test_a_terminal_shows_one_line_that_follows_the_stages_and_is_removed_at_the_end(
    terminal: Terminal,
) -> None:
    hosts: list[str] = []
    with Progress("reading", stream=terminal) as progress:
        wait_for(terminal, "reading")
        progress.stage(lambda: f"connecting: {len(hosts)} of 3 hosts")
        wait_for(terminal, f"reading{ERASE}connecting: 0 of 3 hosts")
        hosts.append("node1")
        wait_for(terminal, f"0 of 3 hosts{ERASE}connecting: 1 of 3 hosts")
        progress.stage("")
        wait_for(terminal, f"1 of 3 hosts{ERASE}")
        progress.stage("ending")
        wait_for(terminal, "ending")
    assert terminal.getvalue().endswith(f"ending{ERASE}")
    assert "\n" not in terminal.getvalue()


def test_a_terminal_line_is_never_wider_than_the_terminal(terminal: Terminal) -> None:
    with Progress(f"reading {'漢' * 60}\x1b[2J", stream=terminal):
        wait_for(terminal, "…")
    shown = terminal.getvalue().removesuffix(ERASE)
    assert shown == f"reading {'漢' * 35}…" and cut("x" * 9, 8) == f"{'x' * 7}…"


def test_the_line_is_removed_before_any_other_output_and_drawn_again_after_it(terminal: Terminal) -> None:
    with Progress("connecting", stream=terminal):
        wait_for(terminal, "connecting")
        HarmlessStream(terminal).write("note: a\n")
        wait_for(terminal, f"connecting{ERASE}note: a\nconnecting")
        Screen(terminal).say("job 1")
        wait_for(terminal, f"connecting{ERASE}job 1\nconnecting")


def test_no_line_is_drawn_over_a_question(terminal: Terminal) -> None:
    line = LiveLine()
    line.remove("sure? ", is_terminal=True)
    line.draw(terminal, "connecting")
    assert terminal.getvalue() == ""


def test_a_count_is_shown_from_its_begin_to_its_end(terminal: Terminal) -> None:
    with Progress("waiting", stream=terminal), Progress("data", unit="hosts", stream=terminal) as count:
        wait_for(terminal, "waiting")
        count.show(1, 2)
        wait_for(terminal, f"{ERASE}data: 1 of 2 hosts")
        count.show(2, 2)
        wait_for(terminal, f"2 hosts{ERASE}waiting")


def test_the_inner_progress_is_shown(terminal: Terminal) -> None:
    with Progress("outer", stream=terminal):
        with Progress("inner", stream=terminal):
            wait_for(terminal, "inner")
        wait_for(terminal, f"inner{ERASE}outer")


def test_a_pipe_gets_plain_lines_after_a_while_without_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIPE_SECONDS", 0.05)
    stream = io.StringIO()
    with Progress("connecting", stream=stream) as progress:
        wait_for(stream, "connecting\n")
        progress.stage("sending")
        wait_for(stream, "sending\n")
    assert {*stream.getvalue().splitlines()} == {"connecting", "sending"}


def test_a_pipe_is_silent_for_less_than_3_s_at_first_and_never_for_more_than_10_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream, now, lines, times = io.StringIO(), live_line.quiet_since, 0, [0.0]
    monkeypatch.setattr(module, "PIPE_SECONDS", 2.0)
    monkeypatch.setattr("time.monotonic", lambda: now)
    progress = Progress(lambda: "working", stream=stream)
    progress._open.append(progress)
    for turn in range(1, 6000):
        now = live_line.quiet_since + 0.1 if turn == 1 else now + 0.1
        progress.refresh()
        if stream.getvalue().count("\n") > lines:
            lines += 1
            times.append(turn / 10)
    progress.close()
    silences = [(after, after - before) for before, after in itertools.pairwise(times)]
    assert max(silence for after, silence in silences if after < 25) < 3
    assert max(silence for _, silence in silences) < 10.2
    assert lines < 80


def test_a_quick_command_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIPE_SECONDS", 300.0)
    stream = io.StringIO()
    with Progress("connecting", stream=stream):
        live_line.remove("", is_terminal=False)
    assert stream.getvalue() == ""


def test_a_stage_has_its_time_and_a_count_its_speed_once_they_last(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress("checking", unit="hosts", stream=io.StringIO())
    progress.show(8, 16)
    assert progress.text() == "checking: 8 of 16 hosts"
    monkeypatch.setattr(module, "ELAPSED_SECONDS", 0.0)
    assert progress.text() == "checking: 8 of 16 hosts, 0 s"
    progress.show(0, 0)
    assert progress.text() == "checking, 0 s"
    assert counted(392_000_000, 784_000_000, 4) == "50 %, 392 of 784 MB, 98 MB/s, 4 s left"


def test_a_user_can_turn_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(module.VARIABLE, module.OFF)
    with Progress("connecting") as progress:
        assert progress not in Progress._open


def test_a_stream_that_is_gone_ends_nothing() -> None:
    stream = io.StringIO()
    with Progress("connecting", stream=stream) as progress:
        stream.close()
        progress._draw("connecting")
