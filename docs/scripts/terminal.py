"""Draws recordings of a terminal: each docs/recordings/NAME.ansi becomes docs/images/NAME.svg.

    python docs/scripts/terminal.py             draw
    python docs/scripts/terminal.py --record    run the commands of RECORDINGS on this machine first
    python docs/scripts/terminal.py --first-hour    run those of FIRST_HOUR, for asciinema

A recording is the output on the terminal, with its colours. It omits text that a later line overwrote, and
progress that stayed in place. The .cast files in docs/recordings have all of it, with its times.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import pty
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[2]
RECORDED, IMAGES = ROOT / "docs" / "recordings", ROOT / "docs" / "images"
COLUMNS = 100
RECORDINGS = {
    "launch": "muster demo",
    "failure": "muster demo --hang",
}
# The steps of docs/tutorial.md on one machine. A job has no id before it runs: LAST stands for it.
LAST = "LAST-JOB"
FIRST_HOUR = (
    "muster demo",
    "muster demo --fail",
    "muster demo --hang",
    "mkdir hello && cd hello",
    "cat ../train.py && cp ../train.py .",
    "muster check",
    "muster launch train.py",
    "muster launch --env FAIL=1 train.py",
    "muster status",
    f"muster logs {LAST} | head -20",
    f"muster report {LAST}",
)
KEY_SECONDS, PAUSE_SECONDS, IDLE_SECONDS = 0.04, 0.8, 2.0
ROWS = 32
# rich's frame, without the font that it would fetch from another site.
FRAME = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  line-height: {line_height}px; font-variant-east-asian: full-width }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def pictures() -> dict[Path, str]:
    """Return every picture that this script makes, by path."""
    return {IMAGES / f"{name}.svg": draw((RECORDED / f"{name}.ansi").read_text()) for name in RECORDINGS}


def draw(recording: str) -> str:
    """Return a recording as SVG."""
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    for line in recording.splitlines():
        console.print(_styled(line), soft_wrap=False, no_wrap=False)
    return console.export_svg(title="", theme=DIMMED_MONOKAI, code_format=FRAME)


def _styled(line: str) -> Text:
    """Return a line with its colours; prompts and verdicts are highlighted."""
    text = Text.from_ansi(line)
    text.highlight_regex(r"^\$ .*", "bold")
    text.highlight_regex(r"^DONE", "bold green")
    text.highlight_regex(r"^FAILED", "bold red")
    return text


def settled(shown: str) -> str:
    """Return the visible text: that of each line after its last carriage return."""
    lines = [line.rstrip("\r").split("\r")[-1] for line in shown.split("\n")]
    return "\n".join(re.sub(r"\x1b\[K", "", line).rstrip() for line in lines).strip() + "\n"


def record(name: str) -> None:
    """Run a command of RECORDINGS on a terminal, in an empty folder, and save its output."""
    with tempfile.TemporaryDirectory(prefix="muster-") as folder:
        project = Path(folder) / "project"
        project.mkdir()
        shown = [text for _, text in _timed(shlex.split(RECORDINGS[name]), project, {"HOME": folder})]
    text = without_paths(settled("".join(shown)), folder)
    (RECORDED / f"{name}.ansi").write_text(f"$ {RECORDINGS[name]}\n{text}")


def without_paths(text: str, home: str) -> str:
    """Return a text without the paths and the name of this machine."""
    text = re.sub(rf"\bon {re.escape(socket.gethostname())}\b", "on laptop", text)
    return text.replace(home, "~").replace(sys.prefix, "~/.venv").replace(str(ROOT), "~/muster")


def first_hour(folder: Path) -> str:
    """Run FIRST_HOUR in a folder; returns the recording."""
    (folder / "train.py").write_text(_program_of_the_tutorial())
    return cast("Muster: the first hour, on one machine", FIRST_HOUR, folder)


def cast(title: str, commands: Sequence[str], folder: Path) -> str:
    """Run the commands in a folder; returns the recording, in version 2 of asciinema's format."""
    current, jobs = folder, ""
    at, events = 0.0, list[tuple[float, str]]()
    for command in commands:
        typed = command.replace(LAST, jobs)
        for key in ("$ ", *typed, "\r\n"):
            events.append((at, key))
            at += KEY_SECONDS
        began, shown = at, ""
        script = f"{typed}; pwd >{shlex.quote(str(folder / 'pwd'))}"
        for seconds, text in _timed(["sh", "-c", script], current, {"HOME": str(folder)}):
            events.append((began + seconds, text))
            at, shown = began + seconds, shown + text
        current = Path((folder / "pwd").read_text().strip())
        jobs = "".join(re.findall(r"runs/(\d{8}-\d{6}-[0-9a-f]{4})/logs", shown)[-1:]) or jobs
        at += PAUSE_SECONDS
    head: dict[str, object] = {
        "version": 2,
        "width": COLUMNS,
        "height": ROWS,
        "idle_time_limit": IDLE_SECONDS,
    }
    head |= {"title": title, "env": {"TERM": "xterm-256color"}}
    lines = [json.dumps(head), *(json.dumps([round(at, 3), "o", text]) for at, text in events)]
    return without_paths("\n".join(lines), str(folder)) + "\n"


def _program_of_the_tutorial() -> str:
    tutorial = (ROOT / "docs" / "tutorial.md").read_text()
    return str(re.findall(r"```python\n(.*?)```", tutorial, re.DOTALL)[0])


def _timed(command: list[str], folder: Path, env: Mapping[str, str]) -> Iterator[tuple[float, str]]:
    """Yield the output of a command on a terminal in pieces, each with the seconds since the start.

    The folder of this Python is first on its PATH.
    """
    ours, theirs = pty.openpty()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    size = {"COLUMNS": str(COLUMNS), "LINES": "50", "PATH": path}
    decoder, began = codecs.getincrementaldecoder("utf-8")("replace"), time.monotonic()
    with subprocess.Popen(
        command, cwd=folder, env={**os.environ, **env, **size}, stdin=theirs, stdout=theirs, stderr=theirs
    ):
        os.close(theirs)
        while chunk := _read(ours):
            yield time.monotonic() - began, decoder.decode(chunk)
    os.close(ours)


def _read(terminal: int) -> bytes:
    """Return the next bytes; b"" when the last program has closed the terminal (Linux: EIO)."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def main(arguments: list[str]) -> None:
    """Record with --record or --first-hour, then draw."""
    for name in RECORDINGS if "--record" in arguments else ():
        record(name)
    if "--first-hour" in arguments:
        with tempfile.TemporaryDirectory(prefix="muster-") as folder:
            (RECORDED / "first-hour.cast").write_text(first_hour(Path(folder)))
    for path, picture in pictures().items():
        path.write_text(picture)
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
