"""The wheel in an environment without the checkout: what is in it, and the README done with it."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile import make_hostile
from tests.launching import ROOT
from tests.wheel import Installed, build, install, tracked, wheel_of

pytestmark = pytest.mark.timeout(600)
# What runs without the checkout. Documents, tests, benchmarks and examples are for its readers.
SHIPPED = (
    "deploy",
    "examples",
    "train",
    "ansible",
    "docker",
    "muster",
    "compose.yaml",
    ".dockerignore",
    "fabfile.py",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(built[0], tmp_path_factory.mktemp("installed"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder of the user's."""
    made = tmp_path / "my project"
    made.mkdir()
    return made


def files_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name.partition("/")[2] for name in archive.namelist() if name.startswith("muster/")}


def test_the_wheel_has_every_file_that_is_needed_and_no_other(built: tuple[Path, Path]) -> None:
    assert files_of(built[0]) == {name.removeprefix("muster/") for name in tracked(*SHIPPED)}


def test_the_wheel_of_the_sdist_is_the_same(built: tuple[Path, Path], tmp_path: Path) -> None:
    with tarfile.open(built[1]) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    assert files_of(wheel_of(source, tmp_path / "dist")) == files_of(built[0])


def test_nothing_of_the_checkout_is_loaded(installed: Installed, place: Path) -> None:
    script = "import muster.deploy.cli.dispatch as it, muster.train, sys; print(it.__file__, *sys.path)"
    done = installed.run("python", "-c", script, cwd=place)
    module, *places = done.stdout.split()
    assert module == str(installed.package / "deploy" / "cli" / "dispatch.py")
    assert str(ROOT) not in places


def test_type_checkers_see_the_types(installed: Installed, place: Path) -> None:
    """mypy of this environment, with the packages of the other one."""
    (place / "right.py").write_text(
        "from muster import JobResult, launch, run\n"
        "def length(text: str) -> int: return len(text)\n"
        "values: list[int] = run(length, 'x', hosts='hosts.txt', np=4)\n"
        "result: JobResult = launch('train.py', np=8, env={'A': '1'}).wait()\n"
    )
    (place / "wrong.py").write_text("from muster import launch\nlaunch('x.py', np='8', host='h')\n")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(installed.bin / "python")]
    command = [*mypy, "right.py", "wrong.py"]
    done = subprocess.run(
        command, cwd=place, env=installed.env, capture_output=True, text=True, timeout=540, check=False
    )
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert {line.partition(":")[0] for line in errors} == {"wrong.py"}, done.stdout + done.stderr
    assert '"np" to "launch" has incompatible type "str"; expected "int"' in done.stdout
    assert 'Unexpected keyword argument "host"' in done.stdout


def test_demo_learns(installed: Installed, place: Path) -> None:
    done = installed.muster("demo", cwd=place, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, last, hint = done.stdout.splitlines()
    assert hint.startswith("next:   source ")
    assert any("1437 training and 360 held-out digits" in line for line in lines), done.stdout
    assert sum("loss" in line for line in lines) == 15, done.stdout
    found = re.fullmatch(r"accuracy=(0\.\d+) ranks=2 hosts=1 backend=gloo launcher=mpirun seconds=\S+", last)
    assert found, last
    assert float(found.group(1)) >= 0.97
    assert [path.name for path in place.iterdir()] == ["runs"]


def test_a_new_project_launches_its_own_program(installed: Installed, place: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(place)], check=True)
    begun = installed.muster("init", cwd=place)
    assert begun.returncode == 0, begun.stderr
    assert {path.name for path in place.iterdir()} == {".git", ".gitignore", "fabfile.py", "hosts.txt"}
    assert "muster check" in begun.stdout
    assert "muster launch" in begun.stdout
    (place / "mine.py").write_text("import os, sys\nprint(os.environ['RANK'], *sys.argv[1:])\n")
    for program in ("muster", "fab"):
        done = installed.run(program, "launch", "mine.py", "--epochs", "3", cwd=place)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "[1 localhost] 1 --epochs 3\n" in done.stdout
    ignored = subprocess.run(
        ["git", "status", "--short"], cwd=place, capture_output=True, text=True, check=True
    )
    assert "runs" not in ignored.stdout


def test_init_overwrites_nothing(installed: Installed, place: Path) -> None:
    mine = {"hosts.txt": "node1\n", "fabfile.py": "# mine\n", ".gitignore": "*.pt\nruns"}
    for name, text in mine.items():
        (place / name).write_text(text)
    assert installed.muster("init", cwd=place).returncode == 0
    after = {name: (place / name).read_text() for name in mine}
    assert after == mine | {".gitignore": "*.pt\nruns\n.muster/\n"}
    again = installed.muster("init", "--example", "minimal", cwd=place)
    assert again.stdout.count("kept as it is") == 3
    assert (place / "minimal.py").read_text() == (ROOT / "examples" / "minimal.py").read_text()


def test_a_dry_run_touches_nothing(installed: Installed, place: Path) -> None:
    (place / "hosts.txt").write_text("localhost slots=2\n")
    done = installed.muster("launch", "--dry-run", "--", "--epochs", "3", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "-m muster.train --epochs 3" in done.stdout
    assert [path.name for path in place.iterdir()] == ["hosts.txt"]


def test_check_judges_images_too(installed: Installed, place: Path) -> None:
    """Not that this machine is fit, which is its own business; and it has no image."""
    (place / "hosts.txt").write_text("localhost slots=2\n")
    done = installed.muster("check", "--json", cwd=place)
    assert done.returncode in {0, 3}, done.stderr
    assert '"localhost"' in done.stdout
    script = "from muster.deploy.features.image.image_versions import load; print(*load())"
    assert "cpu" in installed.run("python", "-c", script, cwd=place).stdout.split()


def test_an_image_is_built_from_the_installed_files(installed: Installed, place: Path) -> None:
    done = installed.muster("image", "build", "cpu", "--dry-run", cwd=place)
    assert done.returncode == 0, done.stderr
    command = done.stdout.splitlines()[-1]
    assert f"--file {installed.package}/docker/docker-bake.json cpu" in command
    assert f"cpu.context={installed.package}" in command


def test_setup_shows_and_runs_the_shipped_playbook(installed: Installed, place: Path) -> None:
    (place / "my hosts.txt").write_text("node1\n")
    words = ("setup", "--hosts", "my hosts.txt", "--", "--list-hosts")
    done = installed.muster(*words, cwd=place)
    book, config = installed.package / "ansible" / "setup.yml", installed.package / "ansible" / "ansible.cfg"
    shown = f"ANSIBLE_CONFIG={config} ansible-playbook {book} --inventory 'my hosts.txt' --list-hosts"
    assert shown in done.stdout, done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    assert "      node1\n" in done.stdout


def test_without_ansible_setup_says_how_to_get_it(installed: Installed, place: Path) -> None:
    (place / "hosts.txt").write_text("node1\n")
    (installed.bin / "ansible-playbook").rename(installed.bin / "put-away")
    try:
        done = installed.muster("setup", cwd=place, env={"PATH": "/nowhere"})
    finally:
        (installed.bin / "put-away").rename(installed.bin / "ansible-playbook")
    assert done.returncode == 2
    assert "pip install 'ansible-core>=2.19'" in done.stderr


@pytest.mark.parametrize(
    ("program", "launcher"), [pytest.param("muster", "torchrun", marks=pytest.mark.soak), ("fab", "mpirun")]
)
def test_project_names_are_its_own(installed: Installed, place: Path, program: str, launcher: str) -> None:
    make_hostile(place)
    assert installed.muster("init", cwd=place).returncode == 0
    done = installed.run(program, "launch", "--launcher", launcher, "train.py", cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in (0, 1):
        (log,) = place.glob(f"runs/*/logs/rank-{rank:04d}@localhost.out")
        assert log.read_text().splitlines() == [f"{rank} True", "library ../lib/muster/train/__init__.py"]


@pytest.fixture(scope="module", autouse=True)
def no_program_of_the_checkout(installed: Installed) -> Iterator[None]:
    """The environment's PATH has no `muster` or `fab` but its own."""
    found = subprocess.run(
        ["sh", "-c", "command -v muster fab"], env=installed.env, capture_output=True, text=True, check=False
    )
    assert found.stdout == ""
    yield


@pytest.mark.parametrize("program", ["muster", "fab"])
def test_a_project_folder_is_not_the_docker_sdk(installed: Installed, place: Path, program: str) -> None:
    make_hostile(place)
    assert installed.muster("init", cwd=place).returncode == 0
    done = installed.run(program, "image", "check", "muster:nowhere", cwd=place)
    assert done.returncode in {1, 2, 3}
    assert "Traceback" not in done.stderr
    assert "muster:nowhere" in done.stderr or "engine" in done.stderr
