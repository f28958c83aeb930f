"""uv, as a program of this machine. Its binary also goes to hosts that make environments."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from ...core.errors import MusterError

TLS = "behind a proxy that inspects TLS name the file of its authority: export SSL_CERT_FILE=FILE"
LINES = 20  # of its output in an error


@cache
def program() -> Path:
    """uv of this environment, else of PATH."""
    path = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if path is None:
        raise MusterError("--requirements needs uv here, which is not installed: pip install uv")
    return Path(path).resolve()


def run(arguments: Sequence[str], failure: str, environment: Mapping[str, str], folder: Path) -> str:
    """The output of uv; `MusterError` with `failure` and its own last lines if it failed."""
    done = subprocess.run(
        [str(program()), *arguments, "--no-progress", "--color", "never"],
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()[-LINES:]
        remedy = [TLS] if any("certificate" in line.lower() for line in lines) else []
        raise MusterError(
            "\n".join([f"{failure}; uv's message:", *(f"    {line}" for line in lines), *remedy])
        )
    return done.stdout.decode()
