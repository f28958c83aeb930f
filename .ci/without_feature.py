#!/usr/bin/env python3
"""Deletes features in a copy of the checkout: lint, types and the tests of everything else must stay green.

    .venv/bin/python .ci/without_feature.py notify nested

It deletes each folder deploy/features/NAME, the tests with NAME in their file name, and the lines of the
feature in all_features.py, all_handlers.py and all_options.py. Then it writes the generated pages again, and
runs ruff, mypy and the unit tests in TESTS. The pages that describe the feature are still there, so test_docs
is not in them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LISTS = ("all_features.py", "all_handlers.py", "all_options.py")
TESTS = (
    *("attempts", "budgets", "check", "detach", "docs_scripts", "execute", "feature", "history", "imports"),
    *("option_values", "packaging", "plan", "program", "progress", "project_defaults", "python_api"),
    *("removed", "slurm_batch", "slurm_options"),
)
"""Unit tests of what knows all features: lists, options, generated pages, and the ways to run a job."""


FINDER = """
import sys
from importlib.util import spec_from_file_location
from pathlib import Path


class Copy:
    @staticmethod
    def find_spec(name, path=None, target=None):
        first, _, folder = name.partition(".")
        place = Path("{copy}", folder or first)
        if first == "muster" and "." not in folder and (place / "__init__.py").is_file():
            face, inside = place / "__init__.py", [str(place)]
            return spec_from_file_location(name, face, submodule_search_locations=inside)


sys.meta_path.insert(0, Copy)
"""
"""Finds the package muster in the copy, before the finder of the installation finds it in this checkout."""


def say(line: str) -> None:
    """Print a line before the next program prints its own."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def copy_to(copy: Path) -> None:
    """Copy what git has or would add, and the results of mypy: its next run reads them."""
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, done.stdout.split("\0")):
        source, target = ROOT / name, copy / name
        if source.is_symlink() or source.is_file():  # it may be deleted and not committed
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    for words in (("init", "--quiet"), ("add", "--all")):  # tests ask git for the files of the checkout
        subprocess.run(("git", *words), cwd=copy, check=True)
    if (ROOT / ".mypy_cache").is_dir():
        shutil.copytree(ROOT / ".mypy_cache", copy / ".mypy_cache")
    (copy / ".venv" / "types" / "muster").mkdir(parents=True)  # for mypy, as `make lint` does
    for path in (copy / "deploy", copy / "train", *(copy / "muster").iterdir()):
        (copy / ".venv" / "types" / "muster" / path.name).symlink_to(path)
    (copy / ".venv" / "sitecustomize.py").write_text(FINDER.format(copy=str(copy)))


def delete(feature: str, copy: Path) -> None:
    """Delete the feature, its tests and its lines in the lists."""
    shutil.rmtree(copy / "deploy" / "features" / feature)
    for path in (copy / "tests").rglob(f"test_*{feature}*.py"):
        say(f"deletes {path.relative_to(copy)}")
        path.unlink()
    for name in LISTS:
        path = copy / "deploy" / "features" / name
        path.write_text(without(feature, path.read_text()))


def without(feature: str, text: str) -> str:
    """The text of a list, without the imports from the feature and what is made of them."""
    imports = re.compile(rf"^ *from \.{feature}\.\S+ import (.+?)(  #.*)?\n", re.MULTILINE)
    names = [name.strip() for found in imports.finditer(text) for name in found[1].split(",")]
    text = imports.sub("", text)
    for name in names:
        text = re.sub(rf"^ *(yield |found\.append\(){name}\(.*\)\n", "", text, flags=re.MULTILINE)
        text = re.sub(rf"(, {name}\b|\b{name},\s*)", "", text)
    entry = rf'^    Handler\(\s*(\*\()?"features\.{feature}\..*?\),\n(?=    Handler\(|\))'
    return re.sub(entry, "", text, flags=re.MULTILINE | re.DOTALL)


def main(features: Sequence[str]) -> None:
    """Delete them in a copy, and run the checks there up to the first that fails."""
    with tempfile.TemporaryDirectory() as folder:
        copy, environment = Path(folder), {**os.environ, "PYTHONPATH": f"{folder}/.venv"}
        copy_to(copy)
        for feature in features:
            delete(feature, copy)
        for words in (
            ("-c", f"from muster import deploy; assert deploy.__file__.startswith({folder!r})"),
            ("docs/scripts/reference.py",),
            ("docs/scripts/packages.py",),
            ("-m", "ruff", "format", "--quiet", *(f"deploy/features/{name}" for name in LISTS)),
            ("-m", "ruff", "check", "--quiet", "."),
            ("-m", "mypy", "--no-error-summary"),
            ("-m", "pytest", "-q", "-n", "2", *(f"tests/unit/test_{name}.py" for name in TESTS)),
        ):
            say(f"==> python {' '.join(words)}")
            done = subprocess.run([sys.executable, *words], cwd=copy, env=environment, check=False)
            if done.returncode:
                sys.exit(f"without {', '.join(features)}: {' '.join(words[:2])} fails")
    say(f"without {', '.join(features)}: lint, types and tests are green")


if __name__ == "__main__":
    main(sys.argv[1:])
