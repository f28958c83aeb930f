"""What pyproject.toml says of the packages is what the folders are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wheel import tracked

ROOT = Path(__file__).parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text()  # tomllib is of Python 3.11


def test_each_package_is_a_folder() -> None:
    """A folder inside needs no line: its files travel with it. tests/local/test_wheel.py looks at a wheel."""
    folders = PYPROJECT.partition("\n[tool.setuptools.package-dir]")[2].partition("\n\n")[0]
    names = PYPROJECT.partition("\npackages = [")[2].partition("]")[0]
    listed = dict(re.findall(r'"(muster[\w.]*)" = "(\w+)"', folders))
    assert sorted(listed) == re.findall(r'"(.+?)"', names)
    assert [name for name in listed.values() if not tracked(name)] == []


def test_a_copy_of_a_checkout_is_the_package_without_an_installation() -> None:
    """As where a job of a checkout runs on a host: the folder muster/ must not hide muster.train."""
    places = ["deploy", "deploy.core.errors", "train"]
    script = (
        "import sys; from importlib.util import find_spec; sys.path.insert(0, sys.argv.pop(1)); "
        "print([bool(find_spec(f'muster.{place}')) for place in sys.argv[1:]])"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, str(ROOT), *places],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[True, True, True]\n", "")


# An editable installation has no hash, and pip then takes none for the rest either. The wheel of torch may
# come from any index. Wheels that were built in the same step come from sources whose sums were compared.
WITHOUT_HASHES = ("--editable", "/wheels/*.whl", "/wheels/torch-*.whl", '"/wheels/$1"/*.whl')
INSTALLS = [
    (name, line.strip())
    for name in tracked("Makefile", "docker", "ansible", ".ci", "compose.yaml")
    if not name.endswith((".md", "/obstacles.j2"))  # which tell people what to do
    for line in (ROOT / name).read_text().replace("\\\n", " ").splitlines()
    if re.search(r"\bpip3? (install|download)\b", line) and not line.lstrip().startswith(("#", "fail_msg:"))
]


@pytest.mark.parametrize(("name", "line"), INSTALLS, ids=[name for name, _ in INSTALLS])
def test_what_the_project_installs_by_pip_is_known_by_its_hash(name: str, line: str) -> None:
    for words in re.split(r"\bpip3? (?:install|download)\b", line)[1:]:
        command = words.split("&&")[0]
        if not any(one in command for one in WITHOUT_HASHES):
            assert "--require-hashes --requirement" in command


@pytest.mark.parametrize("wanted", sorted([*ROOT.glob("docker/requirements/*.in"), *ROOT.glob("tests/*.in")]))
def test_pinned_requirements_are_what_was_asked_for_with_hashes(wanted: Path) -> None:
    pinned = re.split(r"\n(?=[a-z])", wanted.with_suffix(".txt").read_text().lower().replace("_", "-"))[1:]
    assert [one for one in pinned if "--hash=sha256:" not in one or "==" not in one] == []
    names = {one.partition("==")[0] for one in pinned}
    for line in wanted.read_text().lower().replace("_", "-").splitlines():
        if re.match(r"[a-z]", line):
            assert re.match(r"[a-z0-9-]+", line)[0] in names  # type: ignore[index]
            assert "==" not in line or any(one.startswith(f"{line} ") for one in pinned)
