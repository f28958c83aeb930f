"""Prints the programs and versions in an image, as one line of JSON, from the image's own Python.

A separate program: the agent gets its text with the request, and `python3 -I -` in the image reads it.
Standard library only, Python 3.7 or newer, so that an older Python than ranks need can report its version.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys

MARK = "muster "  # before the line: the image may print other lines when Python starts
VENDORS = ("/usr/local/mpi/bin", "/opt/hpcx/ompi/bin", "/opt/openmpi/bin", "/usr/lib64/openmpi/bin")


def version_of(name: str) -> str | None:
    """The version of an installed distribution; None where it is missing."""
    try:
        from importlib.metadata import version  # Python 3.8

        return version(name)
    except Exception:  # noqa: BLE001  # an image may have anything in its metadata
        return None


def find_mpirun() -> str | None:
    """mpirun beside this Python, else on PATH, else where vendors put it."""
    folders = [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath), *VENDORS]
    return shutil.which("mpirun", path=os.pathsep.join(folders))


def ask(mpirun: str) -> tuple[int, str]:
    """The exit status of `mpirun --version`, and the end of its output."""
    try:
        done = subprocess.run(
            [mpirun, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, done.stdout.decode(errors="replace")[-4096:]


def passwd() -> str:
    """The users of the image."""
    try:
        with open("/etc/passwd", errors="replace", encoding="utf-8") as file:
            return file.read(1 << 16)
    except OSError:
        return ""


if __name__ == "__main__":
    mpirun = find_mpirun()
    survey = {
        "executable": sys.executable,
        "python": platform.python_version(),
        "torch": version_of("torch"),
        "mpi4py": version_of("mpi4py"),
        "mpirun": mpirun,
        "answer": ask(mpirun) if mpirun else None,
        "passwd": passwd(),
    }
    sys.stdout.write(f"\n{MARK}{json.dumps(survey)}\n")
