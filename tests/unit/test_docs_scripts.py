"""The scripts behind the documents: what they generate is current, and they do what they say."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from docs.scripts import packages, reference, terminal

ROOT = Path(__file__).parents[2]


PAGES = """
import json
from docs.scripts.reference import pages
print(json.dumps({str(path): text for path, text in pages().items()}))
"""


def reference_pages() -> dict[Path, str]:
    """In a process of its own: Invoke takes the help out of tasks when other tests here have them parsed."""
    done = subprocess.run((sys.executable, "-c", PAGES), cwd=ROOT, capture_output=True, text=True, check=True)
    return {Path(path): text for path, text in json.loads(done.stdout).items()}


@pytest.mark.parametrize(
    "generate",
    [reference_pages, packages.pictures, terminal.pictures],
    ids=["reference", "packages", "terminal"],
)
def test_what_is_generated_is_current(generate: Callable[[], Mapping[Path, str]]) -> None:
    old = [path.name for path, text in generate().items() if path.read_text() != text]
    assert not old, "make reference writes them again"


# -- packages --


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """attic imports hall and cellar, hall imports cellar; barn and yard import each other, barn cellar."""
    house = tmp_path / "house"
    modules = {
        "__init__.py": "from .attic import roof",
        "attic/roof.py": "from ..hall import door\nfrom .. import cellar\nimport os",
        "hall/__init__.py": "",
        "hall/door.py": "from muster.house.cellar import wine",
        "cellar.py": "wine = 1",
        "barn/hay.py": "import muster.house.yard.gate\nfrom ..cellar import wine",
        "yard/gate.py": "from ..barn import hay",
    }
    for name, text in modules.items():
        (house / name).parent.mkdir(parents=True, exist_ok=True)
        (house / name).write_text(text)
    return house


def test_the_picture_has_packages_above_their_imports_and_no_implied_arrow(package: Path) -> None:
    imports = packages.imports_of(package)
    assert imports == {
        "attic": {"hall", "cellar"},
        "hall": {"cellar"},
        "cellar": set(),
        "barn": {"yard", "cellar"},
        "yard": {"barn"},
    }
    assert packages.layers_of(imports) == [["cellar"], ["barn", "hall", "yard"], ["attic"]]
    arrows = packages.drawn_arrows(imports)
    assert ("attic", "cellar") not in arrows
    assert {("attic", "hall"), ("hall", "cellar"), ("barn", "yard"), ("yard", "barn")} <= set(arrows)
    assert ("barn", "cellar") in arrows, "a cycle must not hide the way out of it"
    picture = packages.draw(package)
    assert all(f">{name}</text>" in picture for name in imports)
    assert picture.count('class="package cycle"') == 2


# -- reference --


URLS = 'Repository = "https://example.org/m"\nIndex = "https://pypi.org/project/muster-cluster/"\n'


def test_the_first_steps_have_the_addresses_that_the_owner_filled_in(release_check: ModuleType) -> None:
    without = f"# {URLS}".replace("\nIndex", "\n# Index")
    steps = reference.first_steps(without)
    assert steps.startswith("Clone this repository") and "    pip install .  " in steps
    assert len(list(release_check.reminders(without))) == 2
    steps = reference.first_steps(URLS)
    assert "    git clone https://example.org/m muster && cd muster\n" in steps
    assert "    pip install muster-cluster  " in steps and not list(release_check.reminders(URLS))


# -- the site, the terminal --


# -- releases --


@pytest.fixture(scope="module")
def release_check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release_check", ROOT / ".ci" / "release_check.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DATED = "# Changelog\n\n## 0.2.0 (2026-12-01)\n\n### Added\n\n- A line.\n"


@pytest.mark.parametrize(
    ("text", "tags", "problem"),
    [
        (DATED, ["v0.2.0"], ""),
        (DATED.replace("2026-12-01", "unreleased"), [], ""),
        (DATED.replace("2026-12-01", "unreleased"), ["v0.2.0"], "needs a date"),
        (DATED, ["v0.3.0"], "the version is 0.2.0"),
        (DATED.replace("0.2.0", "0.1.0"), [], "first section must be"),
        (DATED.replace("Added", "Improved"), [], "no kind of change: Improved"),
        (DATED.replace("- A line.", ""), [], "is empty"),
    ],
)
def test_changelog_problems(release_check: ModuleType, text: str, tags: list[str], problem: str) -> None:
    found = "\n".join(release_check.changelog_problems(text, "0.2.0", tags))
    assert problem in found
    assert bool(found) == bool(problem)


def test_the_changelog_has_the_version_of_the_package(release_check: ModuleType) -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert not list(release_check.changelog_problems(text, release_check.version(), []))


def test_an_archive_without_what_users_need_or_with_a_key_is_refused(release_check: ModuleType) -> None:
    names = ["muster/ansible/setup.yml", "muster/.muster/id_ed25519"]
    found = list(release_check.content_problems(names, ["muster/compose.yaml"], "a.whl"))
    assert found == [
        "a.whl: muster/compose.yaml is missing",
        "a.whl: muster/.muster/id_ed25519 does not belong there",
    ]


# -- the first hour --


def test_the_recording_of_the_first_hour_plays_and_shows_a_training_and_a_failure() -> None:
    head, *lines = (ROOT / "docs" / "recordings" / "first-hour.cast").read_text().splitlines()
    assert json.loads(head).items() >= {"version": 2, "width": terminal.COLUMNS}.items()
    events = [json.loads(line) for line in lines]
    times = [at for at, kind, _ in events if kind == "o"]
    assert len(times) == len(events) and times == sorted(times)
    shown = "".join(text for _, _, text in events)
    typed = [command for command in terminal.FIRST_HOUR if terminal.LAST not in command]
    places = [shown.index(f"$ {command}\r\n") for command in typed]
    assert places == sorted(places)
    assert "accuracy=0.9" in shown and "FAILED" in shown and "boom" in shown
    assert not re.search(r"/tmp/|/root/|/home/", shown)


def test_no_picture_asks_another_site_for_anything() -> None:
    asks = re.compile(r"@font-face|@import|url\(['\"]?http|href=")
    pictures = [*(ROOT / "docs" / "images").glob("*.svg")]
    assert pictures and not [path.name for path in pictures if asks.search(path.read_text())]
