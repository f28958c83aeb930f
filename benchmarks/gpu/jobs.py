"""Jobs of the proof on this machine: `muster launch` without a hosts file, in a folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

ROOT = Path(__file__).parents[2]
SHARING = Path(__file__).with_name("sharing.py")
MARK = "found: "
"""Begins a line of a rank that has what it found, as JSON."""


@dataclass(frozen=True)
class Ended:
    """A job that has ended: its exit status, what was shown, what the ranks found, and its seconds."""

    status: int
    text: str
    found: tuple[Any, ...]
    seconds: float
    out: Path

    @property
    def said(self) -> str:
        """The line that says why it failed, or the last one."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        wrong = [line for line in lines if "rror" in line]
        return ([*lines[-1:], *wrong[-1:]] or ["no output"])[-1][-300:]


def launch(program: Path, *words: str, options: tuple[str, ...] = (), seconds: float, **env: str) -> Ended:
    """Run `muster launch OPTIONS PROGRAM WORDS` in a new folder; it shares the GPU with other jobs.

    The ranks import from the checkout.
    """
    folder = Path(mkdtemp(prefix="gpu-proof-"))
    for path in (program, SHARING):
        shutil.copy(path, folder)
    values = {"PYTHONPATH": ROOT, **env}
    given = [word for name, value in values.items() for word in ("-x", f"{name}={value}")]
    command = [sys.executable, "-m", "muster", "launch", "--gpus", "0", *options, *given]
    command += [SHARING.name, program.name, *words]
    ended = run(command, folder, seconds)
    logs = [path.read_text(errors="replace") for path in sorted(folder.glob("runs/*/logs/rank-*.out"))]
    return Ended(ended.status, ended.text, found_in(*logs), ended.seconds, folder)


def run(command: list[str], folder: Path, seconds: float, **env: str) -> Ended:
    """Run a command in `folder`; it is ended after so many seconds."""
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        text, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.terminate()  # a launch ends its ranks then
        text, _ = process.communicate(timeout=20)
        text += f"\nerror: it did not end within {seconds:.0f} s\n"
    (folder / "shown.txt").write_text(text)
    return Ended(process.returncode, text, found_in(text), time.monotonic() - began, folder)


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job: without a launcher's variables, and with the checkout to import from."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **more}


def found_in(*logs: str) -> tuple[Any, ...]:
    """What the lines with MARK of all ranks say, in rank order."""
    lines = [line.partition(MARK)[2] for log in logs for line in log.splitlines() if MARK in line]
    return tuple(json.loads(line) for line in lines)


def tell(what: Any) -> None:
    """Have the job know what this rank found."""
    sys.stdout.write(f"{MARK}{json.dumps(what)}\n")
    sys.stdout.flush()
