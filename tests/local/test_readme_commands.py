"""The launches of the README and the program of the tutorial do what they say, on this machine."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from muster.deploy.cli import dispatch
from muster.deploy.cli.commands import FAMILIES
from tests import fake_gpus
from tests.launching import Project
from tests.unit.test_docs import DOCUMENTS, README, commands

PROGRAMS = {name: Path(sys.executable).parent / name for name in ("fab", "muster")}
COMMANDS = [
    command
    for name, path in PROGRAMS.items()
    if path.is_file()
    for command in sorted({*commands(README, name)})
]
LAUNCHES = [command for command in COMMANDS if command.split()[1] == "launch"]
# `data push` is a command of two words.
GROUPS = {name.partition(".")[0] for names in FAMILIES.values() for name in names if "." in name}
NAMES = sorted(
    {
        (words[0], " ".join(words[1 : 3 if words[1] in GROUPS else 2]))
        for words in map(str.split, COMMANDS)
        if not words[1].startswith("-")
    }
)


def run(project: Project, words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PROGRAMS.get(words[0], words[0])), *words[1:]],
        cwd=project.path,
        env=project.env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "secret")


def test_the_launches_of_the_readme_can_be_planned(here: Project, capsys: pytest.CaptureFixture[str]) -> None:
    (here.path / "hosts.txt").write_text("localhost slots=4\n")
    for name in ("train.py", "requirements.txt"):
        (here.path / name).write_text("")
    for command in LAUNCHES:
        program, *words = dry(command)
        status = dispatch.run(words, program)
        said = capsys.readouterr()
        assert status == 0, (command, said)
        assert "ranks 0-3" in said.out, command
        assert ("--epochs 3" in said.out) == ("--epochs" in command)
        assert "secret" not in said.out, command


def test_the_commands_of_the_readme_explain_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    assert NAMES
    for program, name in NAMES:
        assert dispatch.run([*name.split(), "--help"], program) == 0, name
        assert name in capsys.readouterr().out


def test_there_are_launches_to_test() -> None:
    assert LAUNCHES


def test_the_program_of_the_tutorial_adds_up_its_ranks_and_fails_when_told(project: Project) -> None:
    program = re.search(r"^```python\n(.*?)^```", DOCUMENTS["docs/tutorial.md"], re.MULTILINE | re.DOTALL)
    assert program
    (project.path / "train.py").write_text(program.group(1))
    failed = project.launch("--script", "train.py", "--env", "FAIL=1")
    assert "rank 1 of 2, sum of all ranks: 1" in failed.output
    assert failed.status == 1
    assert "FAILED  rank 1 on localhost: exit status 1" in failed.output
    assert "ValueError: boom" in failed.output


@pytest.mark.parametrize("launcher", ["mpirun", pytest.param("torchrun", marks=pytest.mark.soak)])
def test_the_demo_that_fails_names_its_rank_and_writes_the_page(project: Project, launcher: str) -> None:
    done = run(project, ["muster", "demo", "--fail", "--launcher", launcher])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED  rank 1 on localhost: exit status 1" in done.stdout
    assert "ValueError: loss is nan at step 4" in done.stdout
    (page,) = (project.path / "runs").glob("*/report.html")
    assert "loss is nan" in page.read_text()


def test_the_demo_that_hangs_is_explained_by_its_verdict(project: Project) -> None:
    done = run(project, ["muster", "demo", "--hang"])
    assert done.returncode == 3, done.stdout + done.stderr
    assert "muster why" in done.stdout
    assert "why: ranks 0,2 wait in all_reduce" in done.stdout
    assert "rank 1 on localhost is in barrier" in done.stdout
    assert "rank 1 differs from the others" in done.stdout


PAGES = ("networks", "shared-storage", "monitoring", "team", "upgrades")
# These need neither a job nor another host, and change nothing but what they say.
HARMLESS = ("check", "clean", "data list", "env list", "run -- cat", "run -- df", "run -- ps", "status")
ON_PAGES = sorted(
    {
        command
        for page in PAGES
        for command in commands(DOCUMENTS[f"docs/how-to/{page}.md"], "muster")
        if command.removeprefix("muster ").startswith(HARMLESS)
    }
)


# Options that need another host, its network, or an image.
ELSEWHERE = re.compile(r"--(network|image|hosts|include|exclude|slurm|dry-run)")
LAUNCHES_ON_PAGES = sorted(
    {
        command
        for page in (*(f"how-to/{page}" for page in PAGES), "faq", "alternatives")
        for command in commands(DOCUMENTS[f"docs/{page}.md"], "muster")
        if command.startswith("muster launch") and not ELSEWHERE.search(command)
    }
)


@pytest.mark.usefixtures("here")
def test_the_commands_of_the_pages_on_hosts_run_here(capsys: pytest.CaptureFixture[str]) -> None:
    (Path.home() / ".muster").mkdir()
    for command in ON_PAGES:
        status = dispatch.run(shlex.split(command)[1:], "muster")
        said = capsys.readouterr()
        # A check of this machine may find that it is not fit: that is an answer too.
        assert status == 0 or (status == 3 and "check" in command), (command, said)
        assert "Traceback" not in said.err, command


def test_the_launches_of_pages_can_be_planned(here: Project, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("train.py", "requirements.txt", "notify.sh"):
        (here.path / name).write_text("")
    for command in LAUNCHES_ON_PAGES:
        if "--gpus" not in command:
            assert dispatch.run(dry(command)[1:], "muster") == 0, (command, capsys.readouterr())


@pytest.mark.parametrize("command", [command for command in LAUNCHES_ON_PAGES if "--gpus" in command])
def test_a_launch_on_gpus_of_these_pages_can_be_planned(project: Project, command: str) -> None:
    (project.path / "train.py").write_text("")
    fake_gpus.install(project.path.parent / "gpus", 8)
    project.env["PATH"] = f"{project.path.parent / 'gpus'}{os.pathsep}{project.env['PATH']}"
    program, *words = dry(command)
    done = run(project, fake_gpus.entered(8, [str(PROGRAMS[program]), *words]))
    assert done.returncode == 0, done.stderr


def dry(command: str) -> list[str]:
    """The words of a launch, as a dry run."""
    program, launch, *words = shlex.split(command)
    return [program, launch, *(() if "--dry-run" in words else ("--dry-run",)), *words]


def test_there_are_commands_on_these_pages_to_run() -> None:
    assert len(ON_PAGES) >= 10 and len(LAUNCHES_ON_PAGES) >= 9
