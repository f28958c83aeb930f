"""No file of requirements makes uv run code here: what uv might build is refused before uv reads it."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from muster.deploy.core.errors import MusterError, UsageError
from muster.deploy.features.packages import bring
from muster.deploy.features.packages.bring import locked
from muster.deploy.features.packages.package_request import (
    PackageOptions,
    Platform,
    Requirements,
    require_own_requirements,
    wanted,
)
from muster.deploy.features.packages.requirements import files_of, require_no_builds
from tests.packages import make_wheel

PLATFORM = Platform(python="3.13", machine="x86_64", glibc="2.41")
BACKEND = """
import pathlib
pathlib.Path(__file__).parents[1].joinpath("owned").touch()
"""
DYNAMIC = 'dynamic=["dependencies"]\n'
BUILD = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
WHEEL = "names-1.0-py3-none-any.whl"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with packages that leave `owned` in it when they are built."""
    for name in ("pkg", "x-1.0-py3-none-any.whl"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "backend.py").write_text(BACKEND)
        (tmp_path / name / "pyproject.toml").write_text(BUILD)
    make_wheel(tmp_path / "wheels", "names")
    return tmp_path


def give(project: Path, text: str, name: str = "requirements.txt") -> Path:
    file = project / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


def ask(file: Path) -> None:
    wanted(PackageOptions(str(file), torch_backend="none"))


BUILT = [
    *("./pkg", "pkg/", "-e ./pkg", "--editable=pkg", " -e pkg", "file:pkg", "x @ ./pkg", "x[y] @ ./pkg ; a"),
    *("x @ file:${HERE}/pkg", "file://${HERE}/pkg", "file://localhost${HERE}/pkg", "${HERE}/pkg", "../pkg"),
    *("pkg.zip", "pkg.tar.gz", "./pkg.tgz", "x @ pkg.zip", "~/pkg", "./x-1.0-py3-none-any.whl"),
    *("x @ file://${HERE}/x-1.0-py3-none-any.whl", "x @ file://${HERE}/%78-1.0-py3-none-any.whl"),
    *("git+https://example.com/x", "x @ git+file:///x", "git+ssh://git@example.com/x.git", "x @ hg+http://x"),
    *("# c \\\n./pkg", "names # c \\\n./pkg", "\\\n./pkg", "\ufeff./pkg", "names\r./pkg", "-r more.txt"),
]


@pytest.mark.parametrize("line", BUILT)
def test_a_build_is_refused_before_uv(line: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", str(project))
    monkeypatch.setattr(bring, "run_uv", lambda *words: pytest.fail("uv runs"))
    give(project, "./pkg\n", "more.txt")
    file = give(project, f"names\n{line}\n")
    with pytest.raises(
        UsageError, match=r"nothing is built on this machine; make a wheel of it.*pip wheel NAME -w wheels/"
    ):
        ask(file)
    assert not (project / "owned").exists()


def lock(file: Path) -> None:
    locked(Requirements(file, torch_backend="none"), PLATFORM, file.parent / "cache")


@pytest.mark.parametrize("line", ["./pkg", "x @ file://${HERE}/pkg", "--find-links sdists\nx"])
def test_uv_builds_nothing_that_reaches_it(line: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", str(project))
    (project / "pkg" / "pyproject.toml").write_text(f'{BUILD}[project]\nname="x"\nversion="1"\n{DYNAMIC}')
    (project / "sdists").mkdir()
    with tarfile.open(project / "sdists" / "x-1.tar.gz", "w:gz") as archive:
        archive.add(project / "pkg", "x-1")
    with pytest.raises(
        UsageError, match=r"\nx: nothing is built .*pip wheel x -w wheels/.*--find-links wheels/"
    ):
        lock(give(project, f"--no-index\n{line}\n"))
    assert not (project / "owned").exists()


def test_uv_does_build_in_spite_of_no_build_where_a_file_asks_for_it(project: Path) -> None:
    """The proof that the other tests look for is one, and --no-build alone is not enough."""
    file = give(project, "--no-index\n--no-binary x\nx @ ./pkg\n")
    (project / "pkg" / "pyproject.toml").write_text(f'{BUILD}[project]\nname="x"\nversion="1"\n{DYNAMIC}')
    with pytest.raises(MusterError, match="cannot be locked"):
        lock(file)
    assert (project / "owned").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("uv.toml", 'no-binary-package = ["x"]'),
        ("uv.toml", '[pip]\nno-binary = ["x"]'),
        ("pyproject.toml", '[tool.uv]\nno-binary-package = ["x"]'),
        ("../uv.toml", 'no-binary-package = ["x"]'),
    ],
)
def test_settings_that_make_uv_build_are_refused(project: Path, name: str, text: str) -> None:
    (project / "inner").mkdir()
    give(project / "inner", text, name)
    with pytest.raises(UsageError, match="remove no-binary: nothing is built on this machine"):
        ask(give(project / "inner", "names\n"))
    (project / "inner" / name).unlink()
    with pytest.raises(UsageError, match=r"requirements.txt:1:1: --no-binary names: nothing is built on"):
        ask(give(project / "inner", "--no-binary names\n"))


@pytest.mark.parametrize("name", ["uv.toml", "pyproject.toml", "uv.lock"])
@pytest.mark.parametrize("folder", [".", ".."])
def test_settings_and_locks_that_others_may_write_are_refused(project: Path, folder: str, name: str) -> None:
    (project / "inner").mkdir()
    path = give(project / "inner" / folder, "", name)
    path.chmod(0o666)
    with pytest.raises(UsageError, match=rf"{path.resolve()}: others may write to it, and"):
        require_own_requirements(give(project / "inner", "names\n"))


@pytest.mark.parametrize(
    "line",
    [
        *("names", "names==1.0", "names[a,b]>=1,<2 ; python_version > '3'", "names (>=1)", "names~=1.0  # c"),
        *("names==1.0 \\\n    --hash=sha256:00", "--no-index", "--find-links ./wheels", "--hash x", ""),
        *(
            f"./wheels/{WHEEL}",
            f"names @ file://${{HERE}}/wheels/{WHEEL}",
            f"wheels/{WHEEL}",
            f"./{WHEEL}[x]",
        ),
        *("x @ https://example.com/x.whl", "https://example.com/x-1.tar.gz", "--index-url https://${T}@x/"),
    ],
)
def test_packages_and_wheels_pass(line: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", str(project))
    ask(give(project, f"{line}\n"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (BUILD, r"there is no \[project\], so a build would have to tell them"),
        (
            '[project]\nname="x"\ndynamic=["dependencies"]',
            "dependencies: dynamic, so a build would have to tell them",
        ),
        (
            '[project]\nname="x"\ndependencies=["a @ file:///pkg"]',
            "a @ file:///pkg: nothing is built on this machine",
        ),
        (
            '[project]\nname="x"\ndependencies=["A.b"]\n[tool.uv.sources]\na-b={path="pkg"}',
            "tool.uv.sources.a-b: nothing is built on this machine",
        ),
        ('[project]\nname="x"\ndependencies=["a"]\n[tool.uv.sources]\na=[{git="x"}]', "tool.uv.sources.a"),
        (
            '[project]\nname="x"\n[tool.uv]\noverride-dependencies=["a @ ./x"]',
            "a @ ./x: nothing is built on this machine",
        ),
        ("[project", "this is no TOML"),
        pytest.param("x = " + "[" * 5000, "this is no TOML", id="deep"),
        ("tool=1\nproject=2", r"there is no \[project\]"),
    ],
)
def test_a_project_that_uv_would_build_is_refused(text: str, complaint: str, project: Path) -> None:
    with pytest.raises(UsageError, match=complaint):
        ask(give(project, text, "pyproject.toml"))


def test_a_project_whose_dependencies_are_written_down_is_read(project: Path) -> None:
    text = (
        '[project]\nname="x"\ndynamic=["version"]\ndependencies=["torch", "names"]\n'
        '[tool.uv.sources]\ntorch={index="pytorch"}\nunused={path="pkg"}\n'
    )
    file = give(project, text, "pyproject.toml")
    ask(file)
    with pytest.raises(UsageError, match=r"requirements.txt:1:1: the project itself: version: dynamic"):
        ask(give(project, "-e .\n"))
    file.unlink()
    with pytest.raises(UsageError, match=r"there is no pyproject.toml, so its setup.py would run here"):
        ask(give(project, ".\n"))


def test_what_a_uv_lock_exports_is_checked_too(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = give(project, "", "uv.lock")
    words: list[str] = []

    def run(command: list[str], *more: object) -> str:
        words.append(command[0])
        return "names==1.0\n-e ./pkg\n"

    monkeypatch.setattr(bring, "run_uv", run)
    with pytest.raises(UsageError, match=r"uv.lock: -e ./pkg: nothing is built on this machine"):
        locked(Requirements(file, torch_backend="none"), PLATFORM, project / "cache")
    assert words == ["export"]


def test_lists_that_include_each_other_are_read_once_and_no_more_than_a_hundred(project: Path) -> None:
    (project / "sub").mkdir()
    give(project, "-r ../b.txt\n", "sub/a.txt")
    top = give(project, "-r sub/a.txt\n--constraint=b.txt\nnames\n", "b.txt")
    assert [path.name for path, _ in files_of(top)] == ["b.txt", "a.txt"]
    for number in range(101):
        give(project, f"-r {number + 1}.txt\n", f"{number}.txt")
    with pytest.raises(UsageError, match="more than 100 files"):
        require_no_builds(project / "0.txt")
    with pytest.raises(UsageError, match=r"c.txt:1:1: a list at an address may change unseen; download it"):
        ask(give(project, "-r https://example.com/x.txt\n", "c.txt"))


def test_requirements_that_others_may_write_are_refused(project: Path) -> None:
    file = give(project, "-r more.txt\n")
    give(project, "names\n", "more.txt").chmod(0o666)
    with pytest.raises(UsageError, match=r"more.txt: others may write to it, and the ranks run the packages"):
        ask(file)
