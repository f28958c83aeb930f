"""A launch is never silent: it shows its stages until a rank has printed, and nothing of them stays."""

from __future__ import annotations

import itertools
import math
import os
import pty
import re
import select
import subprocess
import time
from pathlib import Path

import pytest

from tests.launching import MUSTER, Project
from tests.load import hold
from tests.waiting import PATIENCE

# Ranks that print nothing until they are let go, as while they import.
SILENT = """
import pathlib, time
while not pathlib.Path("{go}").exists():
    time.sleep(0.05)
print("step 1")
"""
SHOWN = re.compile(r"no output for ([4-9]|\d\d) s")  # a busy machine shows not every second


def launch(project: Project, go: Path, *, output: int, errors: int) -> subprocess.Popen[bytes]:
    (project.path / "silent.py").write_text(SILENT.format(go=go))
    return subprocess.Popen(
        [str(MUSTER), "launch", "--start-timeout", "300", "silent.py"],
        cwd=project.path,
        env={**project.env, "TERM": "xterm", "MUSTER_PROGRESS": ""},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
    )


def read(reader: int, go: Path) -> tuple[str, float]:
    """What a launch shows, and its longest silence until it was let go: when it has shown enough."""
    shown, last, longest = "", time.monotonic(), 0.0
    while select.select([reader], [], [], PATIENCE)[0]:
        try:
            piece = os.read(reader, 1 << 16).decode()
        except OSError:  # a terminal that no program has open any more
            return shown, longest
        if not piece:
            return shown, longest
        if not go.exists():
            longest = max(longest, time.monotonic() - last)
        shown, last = shown + piece, time.monotonic()
        if SHOWN.search(shown):
            go.touch()
    raise AssertionError(f"nothing more after {shown!r}")


@pytest.mark.timed
def test_a_pipe_gets_a_line_every_few_seconds_until_ranks_print(project: Project, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    process = launch(project, tmp_path / "go", output=subprocess.PIPE, errors=writer)
    os.close(writer)
    shown, longest = read(reader, tmp_path / "go")
    output, _ = process.communicate()
    os.close(reader)
    assert process.returncode == 0
    assert output.decode().count("step 1") == 3 and "no output" not in output.decode()
    assert "\r" not in shown
    seconds = [int(text) for text in re.findall(r"^2 ranks started, no output for (\d+) s", shown, re.M)]
    assert seconds and all(second > first for first, second in itertools.pairwise(seconds))
    hold("the longest silence of a launch", longest, 3.0, excludes=math.inf)


@pytest.mark.timed
def test_a_terminal_shows_the_stages_in_one_passing_line(project: Project, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = launch(project, tmp_path / "go", output=theirs, errors=theirs)
    os.close(theirs)
    shown, longest = read(ours, tmp_path / "go")
    assert process.wait() == 0
    os.close(ours)
    lines = [line.rpartition("\x1b[K")[2].strip() for line in shown.split("\n")]
    assert lines[0].startswith("job ")
    assert lines[-1] == "" and [line for line in lines if "step 1" in line] == ["[0-1] step 1", "step 1"]
    assert not [
        line for line in lines if re.search("connecting|sending files|starting|started|no output", line)
    ]
    hold("the longest silence of a launch", longest, 3.0, excludes=math.inf)
