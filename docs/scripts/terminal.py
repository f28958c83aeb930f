"""Draws what a terminal showed: each docs/recordings/NAME.ansi becomes docs/images/NAME.svg.

    python docs/scripts/terminal.py             draw
    python docs/scripts/terminal.py --record    run the commands of RECORDINGS on this machine first

A recording is the text that the terminal got, with its colours. It leaves out what a later line overwrote,
and progress that stayed in place.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[2]
RECORDED, IMAGES = ROOT / "docs" / "recordings", ROOT / "docs" / "images"
COLUMNS = 112
BROKEN = """import os

if os.environ["RANK"] == "1":
    raise ValueError("boom")
"""
RECORDINGS = {
    "launch": "fab launch --hosts hosts.txt --args='--epochs 5'",
    "failure": "fab launch --hosts hosts.txt --launcher torchrun --script broken.py",
}
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
    """Return what remains visible: the text of each line after its last carriage return."""
    lines = [line.rstrip("\r").split("\r")[-1] for line in shown.split("\n")]
    return "\n".join(re.sub(r"\x1b\[K", "", line).rstrip() for line in lines).strip() + "\n"


def record(name: str) -> None:
    """Run a command of RECORDINGS on a terminal, in a project with two slots, and save its output."""
    with tempfile.TemporaryDirectory(prefix="muster-") as folder:
        project = Path(folder) / "project"
        project.mkdir()
        (project / "hosts.txt").write_text("localhost slots=2\n")
        (project / "broken.py").write_text(BROKEN)
        (project / "fabfile.py").write_text((ROOT / "fabfile.py").read_text())
        shown = _on_a_terminal(shlex.split(RECORDINGS[name]), project, {"HOME": folder})
    text = settled(shown).replace(folder, "~")
    (RECORDED / f"{name}.ansi").write_text(f"$ {RECORDINGS[name]}\n{text}")


def _on_a_terminal(words: list[str], folder: Path, env: Mapping[str, str]) -> str:
    """Return what a command writes to a terminal of COLUMNS columns, with this environment first on PATH."""
    ours, theirs = pty.openpty()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    size = {"COLUMNS": str(COLUMNS), "LINES": "50", "PATH": path}
    with subprocess.Popen(
        words, cwd=folder, env={**os.environ, **env, **size}, stdin=theirs, stdout=theirs, stderr=theirs
    ):
        os.close(theirs)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
    os.close(ours)
    return shown.decode()


def _read(terminal: int) -> bytes:
    """Return the next bytes; b"" when the last program has closed the terminal (Linux: EIO)."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def main(words: list[str]) -> None:
    """Record if asked to, then draw."""
    for name in RECORDINGS if "--record" in words else ():
        record(name)
    for path, picture in pictures().items():
        path.write_text(picture)
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
