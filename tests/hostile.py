"""A project whose files have the names of Muster's packages, of the standard library and of torch."""

from __future__ import annotations

from pathlib import Path

# Packages of the project that have the names of Muster's folders: imports get the project's.
THEIRS = ("deploy", "docker", "tests")
# Modules of the project that no launcher and no tool of Muster may load.
TRAPS = ("ansible", "fabric", "invoke", "json", "logging", "numpy", "paramiko", "torch")
PROGRAM = """
import importlib, os, sys
import deploy, docker, tests
import muster.train
print(os.environ["RANK"], *sorted({os.path.dirname(one.__file__) == os.path.join(os.getcwd(), one.__name__)
                                   for one in (deploy, docker, tests)}))
print("library", os.path.relpath(muster.train.__file__, os.getcwd()))
"""


def make_hostile(path: Path) -> None:
    """Fill a folder with these modules, and a train.py that prints where its modules come from."""
    for name in THEIRS:
        (path / name).mkdir()
        (path / name / "__init__.py").write_text("")
    for name in TRAPS:
        (path / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the project was loaded')\n")
    (path / "train.py").write_text(PROGRAM)
