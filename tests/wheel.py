"""Muster as users without a checkout have it: a wheel, installed outside the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.launching import ROOT

# Programs of third-party wheels that find their files by their own place.
PROGRAMS = ("mpirun", "prted", "orted", "ompi_info")

# Those that pip would have made for packages which are not installed here, but come along.
ENTRIES = {
    "fab": "from fabric.main import program; program.run()",
    "ansible-playbook": "from ansible.cli.playbook import main; main()",
}


def tracked(*under: str) -> list[str]:
    """The files that git tracks or would add, committed or not."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "--", *under]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist of the tracked files; other files of the checkout are in neither."""
    source, out = copied(folder / "source"), folder / "dist"
    return wheel_of(source, out), _backend(source, "build_sdist", out)


def build_wheel(folder: Path) -> Path:
    """The wheel of the tracked files alone."""
    return wheel_of(copied(folder / "source"), folder / "dist")


def copied(source: Path) -> Path:
    """Copy the tracked files to a folder, and return it."""
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    return source


def wheel_of(source: Path, out: Path) -> Path:
    """The wheel of a source tree."""
    return _backend(source, "build_wheel", out)


def _backend(source: Path, hook: str, out: Path) -> Path:
    """Call a hook of the build backend, as pip does; without isolation nothing is downloaded."""
    out.mkdir(exist_ok=True)
    script = f"import sys, setuptools.build_meta as backend; print(backend.{hook}(sys.argv[1]))"
    command = [sys.executable, "-c", script, str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Warning:" not in done.stderr, done.stderr[:4000]  # pip shows them to whoever installs Muster
    return out / done.stdout.splitlines()[-1]


@dataclass(frozen=True)
class Installed:
    """An environment with Muster's wheel, and its own home folder."""

    folder: Path
    home: Path

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def package(self) -> Path:
        """The installed folder of the package `muster`."""
        (package,) = self.folder.glob("lib/python*/site-packages/muster")
        return package

    @property
    def env(self) -> dict[str, str]:
        """Variables that do not lead to the checkout; the virtual environment is not activated."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))
        }
        own_bin = Path(sys.executable).parent
        places = [place for place in kept.get("PATH", os.defpath).split(os.pathsep) if Path(place) != own_bin]
        return {**kept, "PATH": os.pathsep.join(places), "HOME": str(self.home)}

    def muster(
        self, *words: str, cwd: Path, timeout: float = 540, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return self.run("muster", *words, cwd=cwd, timeout=timeout, env=env)

    def run(
        self, program: str, *words: str, cwd: Path, timeout: float = 540, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment to its end."""
        return subprocess.run(
            [str(self.bin / program), *words],
            cwd=cwd,
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


def install(wheel: Path, folder: Path) -> Installed:
    """Install the wheel into a new environment, with this environment's packages; download nothing."""
    made = Installed(folder / "venv", folder / "home")
    made.home.mkdir()
    venv.create(made.folder, symlinks=True)
    site = next(made.folder.glob("lib/python*/site-packages"))
    # A path in a .pth file adds its packages but not its .pth files, so the editable Muster is not found.
    (site / "third_party.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(made.bin / "python"), "--quiet"]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True, env=made.env)
    for name in PROGRAMS:
        if (program := Path(sys.executable).parent / name).exists():
            (made.bin / name).symlink_to(program)
    for name, call in ENTRIES.items():
        script = made.bin / name
        # sh reads it first, then Python, like pip's scripts for an interpreter with a long path.
        script.write_text(f"""#!/bin/sh\n'''exec' "{made.bin}/python" "$0" "$@"\n' '''\n{call}\n""")
        script.chmod(0o755)
    return made
