"""The scripts behind the documents: what they generate is current, and they do what they say."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

import pytest

from benchmarks import faults, recovery
from docs.scripts import check_site, packages, reference, site_hooks, terminal

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


def test_the_picture_has_packages_above_their_imports_and_no_implied_arrow(
    package: Path,
) -> None:
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


def test_the_address_of_the_repository_is_one_setting() -> None:
    assert site_hooks.repository('# [project.urls]\n# Repository = "https://..."\n') is None
    assert (
        site_hooks.repository('[project.urls]\nRepository = "https://example.org/m"\n')
        == "https://example.org/m"
    )


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


def test_a_field_of_json_that_nobody_described_stops_the_reference() -> None:
    with pytest.raises(SystemExit, match=r"has no entry for Gpu\.colour"):
        list(reference.fields("gpu", "Gpu", {"Gpu": {"colour": "str"}}, owner="fit"))


# -- the site, the terminal --


@pytest.mark.parametrize(
    ("page", "link", "shown"),
    [
        ("train.md", "[train/demo/main.py](../train/demo/main.py)", "train/demo/main.py"),
        ("train.md", "[replicas.py](../train/replicas.py)", "replicas.py (`train/replicas.py`)"),
        ("how-to/x.md", "[image](../image.md#versions)", "[image](../image.md#versions)"),
        ("how-to/x.md", "[the book](../../ansible/README.md)", "the book (`ansible/README.md`)"),
        ("x.md", "![a picture](../images/x.svg)", "![a picture](../images/x.svg)"),
    ],
)
def test_a_link_out_of_the_documents_becomes_a_name(page: str, link: str, shown: str) -> None:
    assert site_hooks.replace_outside_links(link, PurePosixPath("docs", page).parent) == shown


def test_short_code_is_kept_on_one_line() -> None:
    long = f"<code>{'x' * 40}</code>"
    assert (
        site_hooks.on_page_content(f"<code>--np 4</code>{long}") == f'<code class="short">--np 4</code>{long}'
    )


def test_a_link_out_of_the_documents_leads_to_the_repository_if_it_is_known() -> None:
    written = ("[a](../train/demo/main.py)", PurePosixPath("docs"), "https://x.org/m")
    assert site_hooks.replace_outside_links(*written) == "[a](https://x.org/m/blob/main/train/demo/main.py)"


@pytest.mark.parametrize(
    ("html", "problems"),
    [
        ('<script src="assets/a.js"></script><a href="https://a.org/b">', 0),
        ('<script src="https://cdn.org/a.js"></script>', 1),
        ('<link rel="stylesheet" href="//fonts.org/a.css">', 1),
        ('<link rel="canonical" href="https://a.org/">', 0),
        ('<a href="http://a.org">', 1),
        ('<a href="https://nowhere">', 1),
    ],
)
def test_a_page_fetches_nothing_from_elsewhere(html: str, problems: int) -> None:
    assert len(list(check_site.problems(html))) == problems


def test_a_recording_keeps_what_remains_on_the_terminal() -> None:
    shown = "\r\x1b[Kjob 1\r\n[0] 10 %\r\x1b[K[0] 90 %\r\x1b[K\x1b[36m[0]\x1b[0m done\r\n\r\x1b[K"
    assert terminal.settled(shown) == "job 1\n\x1b[36m[0]\x1b[0m done\n"


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


def test_the_section_on_recoveries_is_replaced_and_has_medians_and_failures() -> None:
    page = (ROOT / "docs" / "faults.md").read_text()
    without = page.replace(recovery.section_of(page), "")
    measured: list[dict[str, Any]] = [
        {
            "name": "rank",
            "launcher": launcher,
            "recovered": seconds,
            "load": 0.8,
            "parts": {"rendezvous": 0.5},
        }
        for launcher, seconds in (
            ("mpirun", 5.0),
            ("mpirun", 6.0),
            ("torchrun", 7.5),
            ("torchrun alone", None),
        )
    ]
    once = recovery.with_section(without, recovery.section(measured))
    assert recovery.with_section(once, recovery.section(measured)) == once
    assert once.replace(recovery.section_of(once), "") == without
    assert "| a rank is killed (SIGKILL) | 5.5 | 7.5 | never, 1 of 1 | 6 |" in once
    assert "| rendezvous | 0.50 | 0.50 |" in once


def test_the_page_has_figures_of_its_own_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "faults.md").touch()
    record = tmp_path / "faults.jsonl"
    record.write_text('{"round": "of an earlier tree"}\n')
    monkeypatch.setattr(faults, "ROOT", tmp_path)
    monkeypatch.setattr(faults, "RECORD", record)
    monkeypatch.setattr(faults, "with_figures", lambda page, measured: json.dumps(measured))

    def measure(*_: object, **__: object) -> None:
        with record.open("a") as file:
            file.write('{"round": "of today"}\n')

    monkeypatch.setattr("benchmarks.faults.subprocess.run", measure)
    for rounds, figures in ((0, ["of an earlier tree"]), (2, ["of today"] * 2), (0, ["of today"] * 2)):
        faults.main(rounds)
        written = json.loads((tmp_path / "docs" / "faults.md").read_text())
        assert [entry["round"] for entry in written] == figures
    monkeypatch.setattr("benchmarks.faults.subprocess.run", lambda *_, **__: None)
    with pytest.raises(SystemExit, match="no fault was measured"):
        faults.main(1)
