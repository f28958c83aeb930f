"""No text drives the terminal, whoever wrote it and wherever it is printed."""

from __future__ import annotations

import ast
import io
import os
import re
import socket
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from muster.deploy.cli import dispatch as program
from muster.deploy.cli import option_values as options
from muster.deploy.core.text.live_line import ERASE
from muster.deploy.core.text.progress import Progress
from muster.deploy.core.text.screen import Screen
from muster.deploy.core.text.terminal import HarmlessStream, harmless, harmless_streams, own_stream
from tests.launching import MUSTER
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
EVIL = "node\x1b]0;owned\x07 \x9b2J\r\x7f \ud800 ä\tb \u202e\u2066\u200b\ufeff\u2028\U000e0041\n"
SHOWN = "node␛]0;owned␇ \ufffd2J␍␡ ? ä\tb \ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\n"
# They answer or report in frames, to a driver and not to a terminal; one writes a file of this checkout, one
# the findings of setup, and one only flushes what a user's program has printed.
FRAMES = {
    "deploy/features/containers/on_host/survey.py",  # inside of an image
    "deploy/core/agent/main.py",
    "deploy/core/agent/gpus.py",
    "deploy/core/agent/in_rank/muster_program_end.py",
    "deploy/features/detach/detached_main.py",
    "deploy/features/slurm/batch_main.py",
    "deploy/features/image/bake.py",
}
# Muster's own words: before any import, and in a thread while the main thread may hold the stream's lock.
OWN_WORDS = {
    ("deploy/cli/entry.py", "os.write(2, b'interrupted\\n')"),
    ("deploy/core/interrupts.py", "os.write(2, f'{text}\\n'.encode())"),
}


def test_any_command_is_harmless(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def command(words: Sequence[str], called: str) -> int:
        sys.stdout.write(EVIL)
        sys.stdout.writelines([EVIL])
        sys.stderr.write(EVIL)
        return 3

    monkeypatch.setattr(program, "run", command)
    with pytest.raises(SystemExit):
        program.main([])
    assert capsys.readouterr() == (SHOWN * 2, SHOWN)


MISTAKES = [["\x1b[2J"], ["launch", "--\x1b[2J"], ["status", "--hosts", "\x1b[2J"]]
EACH = """
import sys
from muster.deploy.cli.dispatch import main
for words in eval(sys.argv[1]):
    try:
        main(words)
    except SystemExit as end:
        print(end.code, flush=True)
"""


def test_what_a_command_ends_with_is_harmless() -> None:
    command = [sys.executable, "-c", EACH, repr(MISTAKES)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "2\n" * len(MISTAKES)
    assert done.stderr.count("␛[2J") >= len(MISTAKES)
    assert "\x1b" not in done.stderr


def test_every_invisible_character_is_shown_as_one() -> None:
    """By Unicode's own tables. What stays is visible: the signs before Arabic, Syriac and Kaithi numbers."""
    every = map(chr, range(sys.maxunicode + 1))
    invisible = {character for character in every if unicodedata.category(character) in {"Cf", "Zl", "Zp"}}
    kept = {character for character in invisible if harmless(character) == character}
    assert {unicodedata.name(character).split()[0] for character in kept} == {"ARABIC", "SYRIAC", "KAITHI"}
    assert "\u061c" not in kept  # Arabic, but a mark of direction


def test_a_guarded_stream_is_otherwise_what_it_was(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w", encoding="utf-8") as file:
        stream = HarmlessStream(file)
        assert (stream.fileno(), stream.isatty(), stream.encoding) == (file.fileno(), False, "utf-8")
        print("a", 1, file=stream, flush=True)
        assert (tmp_path / "out").read_text() == "a 1\n"


def test_the_screen_and_the_progress_line_have_their_own_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_PROGRESS")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    guarded = HarmlessStream(terminal)
    assert isinstance(guarded.errors, str)  # else input() reads without readline: no history, no cursor keys
    assert own_stream(guarded) is terminal  # type: ignore[arg-type]  # as sys.stdout is
    Screen(guarded).say("said \x1b[2J")  # type: ignore[arg-type]
    with Progress("node\x1b[2J", stream=guarded) as progress:  # type: ignore[arg-type]
        wait_until(lambda: "node␛[2J" in terminal.getvalue(), terminal.getvalue)
        progress.show(1, 2)
    assert terminal.getvalue().endswith(ERASE)
    assert "\x1b[2J" not in terminal.getvalue()


def test_the_streams_are_what_they_were_afterwards() -> None:
    before = sys.stdout, sys.stderr
    with pytest.raises(ValueError, match="x"), harmless_streams():
        raise ValueError("x")
    assert (sys.stdout, sys.stderr) == before


def _past_the_guard(name: str, used: str) -> bool:
    if used in {"sys.stdout", "sys.stderr"}:
        # api/ shows what a command has written through its own guard.
        allowed = ("deploy/api/", "deploy/cli/", "deploy/core/text/terminal.py")
        return not name.startswith(allowed) and "/command" not in name and name not in FRAMES
    if used in {"sys.stdout.buffer", "sys.stderr.buffer"}:
        return name not in FRAMES
    if "own_stream(" in used and not name.startswith("deploy/core/text/"):
        return True
    opens = ("open('/dev/tty'", "os.write(1,", "os.write(2,", "print(")
    return used in {"sys.__stdout__", "sys.__stderr__"} or (
        used.startswith(opens) and (name, used) not in OWN_WORDS
    )


SUSPECT = re.compile(r"sys\.(__)?std|own_stream\(|/dev/tty|os\.write\(|print\(")


def test_nothing_writes_to_the_terminal_past_the_guard() -> None:
    found = []
    for path in sorted(ROOT.glob("deploy/**/*.py")):
        name, text = str(path.relative_to(ROOT)), path.read_text()
        if path.parent.name == "programs" or not SUSPECT.search(text):  # programs run on hosts
            continue
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute | ast.Call) and SUSPECT.search(lines[node.lineno - 1]):
                found += (
                    [(name, node.lineno, used)] if _past_the_guard(name, used := ast.unparse(node)) else []
                )
    assert found == []


# -- a launch says that ranks do not read its standard input, and leaves that input alone --


Opened = tuple[int, list[int]]
"""A descriptor to read, and all descriptors to close."""


def pipe(*parts: bytes, closed: bool = False) -> Opened:
    reader, writer = os.pipe()
    for part in parts:
        os.write(writer, part)
    if closed:
        os.close(writer)
    return reader, [reader] if closed else [reader, writer]


def connection(*parts: bytes, closed: bool = False) -> Opened:
    here, there = socket.socketpair()
    for part in parts:
        there.sendall(part)
    if closed:
        there.shutdown(socket.SHUT_WR)
    return here.fileno(), [here.detach(), there.detach()]


def file(at: int) -> Opened:
    descriptor = os.open(__file__, os.O_RDONLY)
    os.lseek(descriptor, 0, at)
    return descriptor, [descriptor]


def device(name: str) -> Opened:
    descriptor = os.open(name, os.O_RDONLY)
    return descriptor, [descriptor]


def terminal() -> Opened:
    outer, inner = os.openpty()
    os.write(outer, b"a line\n")
    return inner, [outer, inner]


def closed_descriptor() -> Opened:
    descriptor, _ = device(os.devnull)
    os.close(descriptor)
    return descriptor, []


INPUTS: dict[str, tuple[Callable[[], Opened], bool]] = {
    "a pipe with data": (lambda: pipe(b"100\n"), True),
    "a pipe with data whose writer has ended": (lambda: pipe(b"100\n", closed=True), True),
    "a pipe without data": (pipe, False),
    "a pipe that is at its end": (lambda: pipe(closed=True), False),
    "a socket with data": (lambda: connection(b"x"), True),
    "a socket without data": (connection, False),
    "a socket that is at its end": (lambda: connection(closed=True), False),
    "a file": (lambda: file(os.SEEK_SET), True),
    "a file that was read": (lambda: file(os.SEEK_END), False),
    "an empty file": (lambda: device("/proc/self/status"), False),
    "/dev/null": (lambda: device(os.devnull), False),
    "a terminal": (terminal, False),
    "none": (closed_descriptor, False),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_unread_data_is_noticed_and_left_where_it_is(kind: str) -> None:
    make, expected = INPUTS[kind]
    descriptor, opened = make()
    try:
        assert options.has_data(descriptor) is expected
        assert options.has_data(descriptor) is expected, "it is still there"
    finally:
        for each in opened:
            os.close(each)


# -- standard streams that are closed, or a terminal that goes away: the work is done all the same --


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_command_whose_streams_are_closed_does_its_work(tmp_path: Path, closed: str) -> None:
    (tmp_path / "hosts.txt").write_text("localhost\n")
    ran = subprocess.run(
        ["sh", "-c", f'"{MUSTER}" run -- touch "{tmp_path}/done" {closed}'],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, (tmp_path / "done").exists()) == (0, True), ran.stderr
    assert "Traceback" not in ran.stderr


class Gone(io.StringIO):
    """A terminal that is gone."""

    def write(self, text: str, /) -> int:
        raise OSError(5, "Input/output error")


def test_messages_to_a_terminal_that_is_gone_are_no_error_but_output_is() -> None:
    assert HarmlessStream(Gone(), may_fail=True).write("note") == 4
    with pytest.raises(OSError, match="Input/output"):
        HarmlessStream(Gone()).write("data")
