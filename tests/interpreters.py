"""Finds other versions of Python on this machine, for tests of code that must run on them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def interpreter(version: str) -> str | None:
    """Return a working Python of this version (`3.9`) from PATH, pyenv or uv; else None."""
    ask = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    for path in _candidates(version):
        done = subprocess.run([path, "-c", ask], capture_output=True, text=True, timeout=60, check=False)
        if done.stdout.strip() == version:  # a shim of pyenv on PATH may have no Python behind it
            return path
    return None


def _candidates(version: str) -> Iterator[str]:
    if path := shutil.which(f"python{version}"):
        yield path
    pyenv = Path(os.environ.get("PYENV_ROOT", Path("~/.pyenv").expanduser()))
    yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}")))
    if uv := shutil.which("uv"):
        done = subprocess.run([uv, "python", "find", version], capture_output=True, text=True, check=False)
        yield from done.stdout.split()


if __name__ == "__main__":
    sys.stdout.write(f"{interpreter(sys.argv[1]) or ''}\n")
