"""A project's own defaults: muster.toml, or [tool.muster] in pyproject.toml."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.cli.command import PROFILE, Source
from muster.deploy.cli.commands import commands
from muster.deploy.cli.dispatch import run
from muster.deploy.cli.job_options import Status
from muster.deploy.cli.launch import spec_of
from muster.deploy.cli.launch_options import LaunchOptions
from muster.deploy.cli.project import project_of, with_defaults
from muster.deploy.cli.shared import HostOptions, RecordOptions, hosts_file_of, python_here
from muster.deploy.core.connect import ownership
from muster.deploy.core.errors import UsageError
from tests.command_lines import parse

COMMANDS = commands()
TEXT = """\
hosts = "cluster.txt"
np = 8
env = ["A=1", "TOKEN"]
requirements = "needs.txt"
script = "train.py"
args = "--epochs 3"
detach = true

[profiles.big]
slots = 4
np = 64
image = "base:1"
env = "A=2"
detach = false

[profiles.other]
module = "package.main"
slurm = true
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return project


def read(line: str) -> tuple[dict[str, Any], tuple[Source, ...]]:
    """The values of the flags of a command line, with those of the project, and their places."""
    call = parse(shlex.split(line))
    return with_defaults(COMMANDS[call.command], call.values)


COMMON: Mapping[str, Any] = {
    "--hosts": "cluster.txt",
    "--np": 8,
    "--env": ("A=1", "TOKEN"),
    "--requirements": "needs.txt",
    "--script": "train.py",
    "--args": "--epochs 3",
    "--detach": True,
}


@pytest.mark.parametrize(
    ("line", "changed", "gone"),
    [
        ("launch", {}, ()),
        ("launch --np 2", {"--np": 2}, ()),
        ("launch --env A=3", {"--env": ("A=1", "TOKEN", "A=3")}, ()),
        ("launch --no-detach", {"--detach": False}, ()),
        ("launch -- --epochs 9", {"--args": "--epochs 9"}, ()),
        ("launch other.py", {"--script": "other.py"}, ("--args",)),
        ("launch -m pack", {"--module": "pack"}, ("--args", "--script")),
        ("launch --image i", {"--image": "i"}, ("--requirements",)),
        ("launch --slurm=-N2", {"--slurm": "-N2"}, ("--hosts",)),
        (
            "launch --profile big --np 2",
            {
                "--profile": "big",
                "--slots": "4",
                "--np": 2,
                "--image": "base:1",
                "--env": ("A=1", "TOKEN", "A=2"),
                "--detach": False,
            },
            ("--requirements",),
        ),
        (
            "launch --profile other --hosts mine.txt",
            {"--profile": "other", "--module": "package.main", "--hosts": "mine.txt"},
            ("--script", "--args"),
        ),
        (
            "launch --profile other",
            {"--profile": "other", "--module": "package.main", "--slurm": "here"},
            ("--script", "--args", "--hosts"),
        ),
        (
            "launch --profile big train.py --np 5",
            {
                "--profile": "big",
                "--slots": "4",
                "--np": 64,
                "--image": "base:1",
                "--env": ("A=1", "TOKEN", "A=2"),
                "--detach": False,
                "--args": "--np 5",
            },
            ("--requirements",),
        ),
    ],
)
def test_the_command_line_wins_over_the_profile_and_that_over_the_rest(
    here: Path, line: str, changed: Mapping[str, Any], gone: tuple[str, ...]
) -> None:
    (here / "muster.toml").write_text(TEXT)
    expected = {name: value for name, value in {**COMMON, **changed}.items() if name not in gone}
    assert read(line)[0] == expected


def test_no_command_gives_the_flag_of_profiles_another_meaning() -> None:
    for name, command in COMMANDS.items():
        assert (PROFILE in command.flags) == (name == "launch"), name


def test_the_hosts_file_of_a_launch_is_that_of_the_project(here: Path) -> None:
    (here / "muster.toml").write_text(TEXT)
    (here / "cluster.txt").touch()
    assert LaunchOptions().hosts_file == Path("cluster.txt")
    assert LaunchOptions(hosts="hosts.txt").hosts_file == Path("hosts.txt")


def test_the_plan_has_the_place_of_each_value_and_no_secret(here: Path) -> None:
    (here / "muster.toml").write_text(TEXT.replace('"TOKEN"', '"MY_TOKEN=abc"'))
    values, sources = read("launch --profile big --np 2 train.py")
    options = COMMANDS["launch"].made(values, sources=sources)
    assert isinstance(options, LaunchOptions)
    assert not read("status")[1]
    lines = spec_of(options, columns=None).sources
    assert {f"--{each}: command line" for each in ("profile big", "np 2", "script train.py")} <= {*lines}
    assert "--env MY_TOKEN: muster.toml:3" in lines
    assert "--image base:1: muster.toml:12, profile big" in lines
    assert "--no-detach: muster.toml:14, profile big" in lines


def test_pyproject_has_the_same_table_and_may_have_none(here: Path) -> None:
    (here / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert project_of() is None
    text = "[project]\nname = 'muster'\n[tool.muster]\nnp = 2\n[tool.muster.profiles.big]\nnp = 3\n"
    (here / "pyproject.toml").write_text(text)
    assert read("launch")[1] == (Source("--np", 2, "pyproject.toml:4"),)
    place = "pyproject.toml:6, profile big"
    given = Source("--profile", "big", "command line")
    assert read("launch --profile big")[1] == (given, Source("--np", 3, place))


def test_paths_begin_at_the_folder_of_the_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "muster.toml").write_text('hosts = "a/h.txt"\nruns = "~/runs"\nscript = "x.py"')
    below = here / "sub" / "deeper"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    values, (first, *_) = read("launch")
    assert first.place == f"{here}/muster.toml:1"
    assert values == {
        "--hosts": f"{here}/a/h.txt",
        "--runs": str(Path("~/runs").expanduser()),
        "--script": f"{here}/x.py",
    }


def test_other_commands_take_hosts_runs_and_python(here: Path) -> None:
    (here / "muster.toml").write_text('hosts = "h.txt"\nruns = "out"\npython = "python3.12"\nnp = "wrong"')
    (here / "h.txt").touch()
    assert read("check")[0] == read("status")[0] == {"--python": "python3.12"}
    assert read("check --python p")[0] == {"--python": "p"}
    assert hosts_file_of("") == Path("h.txt")
    assert hosts_file_of("mine.txt") == Path("mine.txt")
    assert (Status().hosts_file, Status().runs_folder) == (Path("h.txt"), Path("out"))
    assert Status(runs="mine").runs_folder == Path("mine")


def test_only_a_launch_runs_the_python_of_the_project_here(here: Path) -> None:
    """The folder may be a clone of a stranger's repository."""
    (here / "muster.toml").write_text('python = "./evil"')

    def used(name: str, **given: Any) -> str:
        values, sources = with_defaults(COMMANDS[name], {f"--{flag}": value for flag, value in given.items()})
        command = COMMANDS[name].made(values, sources=sources)
        assert isinstance(command, HostOptions | RecordOptions)
        return python_here(command)

    assert used("launch") == "./evil"
    assert used("launch", **{"dry-run": True}) == ""
    for name in {name for name, each in COMMANDS.items() if "--python" in each.flags} - {"launch"}:
        assert (used(name), used(name, python="mine")) == ("", "mine"), name


def test_a_default_hosts_file_that_is_missing_is_an_error(here: Path) -> None:
    (here / "muster.toml").write_text('hosts = "h.txt"')
    with pytest.raises(UsageError, match=r"^muster\.toml:1: hosts = h\.txt: no such file$"):
        hosts_file_of("")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("np = 'four'", 'muster.toml:1: np needs a whole number, got "four"'),
        ("np = true", "muster.toml:1: np needs a whole number, got true"),
        ("np = 0", "muster.toml:1: np 0: write 1 or more"),
        ("detach = 1", "muster.toml:1: detach needs true or false, got 1"),
        ("hosts = ['a', 'b']", 'muster.toml:1: hosts needs a text, got ["a", "b"]'),
        ("env = [1]", "muster.toml:1: env needs a list of texts, got [1]"),
        ("hosts = ''", "muster.toml:1: hosts is empty; give it a value, or leave it out"),
        ("launcher = 'mpi'", "muster.toml:1: launcher mpi: must be one of mpirun, torchrun"),
        ("\nhost = 'x'", "muster.toml:2: muster launch has no flag host; did you mean hosts?"),
        ("ntasks = 4", "muster.toml:1: muster launch has no flag ntasks; write np"),
        ("profile = 'big'", "muster.toml:1: muster launch has no flag profile"),
        ("min-hosts = 1\nmin_hosts = 2", "muster.toml:2: min_hosts is given twice"),
        ("[profiles.a]\nnp = -1", "muster.toml:2: np -1: write 1 or more"),
        ("[profiles]\na = 1", "muster.toml: a profile is a table: [profiles.NAME]"),
        ("np =", "muster.toml: not valid TOML: "),
        ("np = " + "[" * 5000, "muster.toml: not valid TOML: "),
    ],
)
def test_its_line_is_named(here: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "muster.toml").write_text(text)
    assert run(["launch", "--dry-run"]) == 2
    assert capsys.readouterr().err.startswith(said)


def test_every_mistake_is_reported_at_once(here: Path) -> None:
    (here / "muster.toml").write_text("np = 0\nhost = 'x'\n[profiles.a]\ndetach = 2\n")
    with pytest.raises(UsageError) as caught:
        read("launch")
    assert [line.partition(": ")[0] for line in str(caught.value).split("\n")] == [
        "muster.toml:1",
        "muster.toml:2",
        "muster.toml:4",
    ]


def test_an_error_about_a_default_names_its_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "muster.toml").write_text("np = 2\nmin-hosts = 2\n")
    assert run(["launch", "--np", "3", "x.py"]) == 2
    said = "--min-hosts is for restarts; add --max-restarts N\n--min-hosts: muster.toml:2\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("launch --profile bigg", "muster.toml has no such profile; did you mean big?; profiles: big"),
        ("launch big --np 8", "big is not a file here, but a profile: --profile big"),
    ],
)
def test_a_profile_is_named_by_its_flag(here: Path, line: str, said: str) -> None:
    (here / "muster.toml").write_text("[profiles.big]\nnp = 2\n")
    with pytest.raises(UsageError, match=re.escape(said)):
        read(line)


def test_a_profile_needs_a_file(here: Path) -> None:
    with pytest.raises(UsageError, match=r"^--profile big: no muster\.toml, and no \[tool\.muster\]"):
        read("launch --profile big")


def test_commands_without_defaults_read_no_file(here: Path) -> None:
    (here / "muster.toml").write_text("not TOML")
    assert read("init")[0] == read("cluster up")[0] == {}


def test_a_folder_that_was_removed_has_no_defaults(here: Path) -> None:
    here.rmdir()
    assert project_of() is None


def test_a_file_that_cannot_be_read_is_an_error(here: Path) -> None:
    (here / "muster.toml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"^muster\.toml: cannot be read"):
        project_of()


def test_two_files_in_one_folder_are_refused(here: Path) -> None:
    (here / "muster.toml").write_text("np = 2")
    (here / "pyproject.toml").write_text("[tool.muster]\nnp = 2")
    with pytest.raises(UsageError, match=r"^muster\.toml and \[tool\.muster\] in pyproject\.toml: keep one"):
        project_of()


def test_a_file_that_others_may_write_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "is_private", lambda group: False)
    (here / "muster.toml").write_text("np = 2")
    (here / "muster.toml").chmod(0o664)
    with pytest.raises(UsageError, match=r"^muster\.toml: others may write to it, .* do: chmod go-w muster"):
        project_of()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_users_file_is_refused_or_passed_by(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "muster.toml").write_text("np = 2")
    os.chown(here / "muster.toml", 12345, 12345)
    with pytest.raises(UsageError, match=r"^muster\.toml: belongs to 12345"):
        project_of()
    (here / "sub").mkdir()
    monkeypatch.chdir(here / "sub")
    assert project_of() is None
