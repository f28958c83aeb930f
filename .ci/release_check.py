"""Checks what a release needs: one version, a changelog that has it, a wheel and an sdist with everything.

    python .ci/release_check.py        as `make release-check` runs it; files go to build/dist

On a commit with a version tag the changelog must have a date, and the tag must be the version.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "build" / "dist"
NEEDED = (
    *("muster/deploy/__init__.py", "muster/train/__init__.py", "muster/compose.yaml"),
    *("muster/ansible/setup.yml", "muster/docker/Dockerfile", "muster/docker/versions.json"),
    "muster/examples/minimal.py",
)
"""What a user without a checkout needs, by its place in the wheel."""
UNWANTED = re.compile(r"(^|/)(tests|\.muster|runs|__pycache__)/|id_ed25519|\.pem$")


def version() -> str:
    """The version of pyproject.toml."""
    found = re.search(r'^version = "([^"]+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    if not found:
        raise SystemExit('pyproject.toml: no line version = "..."')
    return found.group(1)


def changelog_problems(text: str, wanted: str, tags: Sequence[str]) -> Iterator[str]:
    """What is wrong with the changelog, and with the tags of this commit."""
    first = re.search(r"^## (\S+) \(([^)]+)\)$", text, re.MULTILINE)
    if not first or first.group(1) != wanted:
        yield f"CHANGELOG.md: the first section must be '## {wanted} (...)'"
        return
    if tags and not re.fullmatch(r"\d{4}-\d\d-\d\d", first.group(2)):
        yield f"CHANGELOG.md: {wanted} is tagged, so its section needs a date, not '{first.group(2)}'"
    if tags and f"v{wanted}" not in tags:
        yield f"the tag is {', '.join(tags)}, the version is {wanted}"
    section = text[first.end() :].split("\n## ", maxsplit=1)[0]
    if kinds := set(re.findall(r"^### (.+)$", section, re.MULTILINE)) - {
        *("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
    }:
        yield f"CHANGELOG.md: no kind of change: {', '.join(sorted(kinds))}"
    if not re.search(r"^- ", section, re.MULTILINE):
        yield f"CHANGELOG.md: the section {wanted} is empty"


def content_problems(names: Sequence[str], needed: Sequence[str], where: str) -> Iterator[str]:
    """What an archive lacks, and what does not belong into it."""
    yield from (f"{where}: {name} is missing" for name in needed if name not in names)
    if where.endswith(".whl"):
        yield from (f"{where}: {name} does not belong there" for name in names if UNWANTED.search(name))


def reminders(pyproject: str) -> Iterator[str]:
    """What the owner has not filled in yet; a release works without it."""
    for name, use in {"Repository": "what to clone", "Index": "how to install from a package index"}.items():
        if not re.search(rf'^{name} = "', pyproject, re.MULTILINE):
            yield f"note: pyproject.toml: [project.urls] has no {name}, so README.md cannot say {use}"


def build() -> tuple[Path, Path]:
    """The wheel and the sdist, built in an environment of their own."""
    shutil.rmtree(DIST, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT)], check=True)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    return wheel, sdist


def main() -> int:
    """Print what is wrong; the exit status."""
    wanted = version()
    tagged = subprocess.run(
        ["git", "tag", "--points-at", "HEAD", "v*"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    problems = [*changelog_problems((ROOT / "CHANGELOG.md").read_text(), wanted, tagged.stdout.split())]
    wheel, sdist = build()
    problems += [
        f"{path.name}: not version {wanted}" for path in (wheel, sdist) if f"-{wanted}" not in path.name
    ]
    problems += content_problems(zipfile.ZipFile(wheel).namelist(), NEEDED, wheel.name)
    with tarfile.open(sdist) as archive:
        inside = [name.partition("/")[2] for name in archive.getnames()]
    problems += content_problems(inside, [name.removeprefix("muster/") for name in NEEDED], sdist.name)
    twine = [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)]
    if subprocess.run(twine, check=False).returncode:
        problems.append("twine check failed")
    sys.stdout.writelines(f"{note}\n" for note in reminders((ROOT / "pyproject.toml").read_text()))
    sys.stdout.write("".join(f"{problem}\n" for problem in problems) or f"{wanted} can be released\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
