"""What a launch runs: Python's kinds of programs, shell scripts, and what to type for anything else."""

from __future__ import annotations

import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from muster.deploy.cli import rank_program as launch_program
from muster.deploy.cli.dispatch import main, run
from muster.deploy.cli.launch import _above
from muster.deploy.cli.launch_options import LaunchOptions
from muster.deploy.core.errors import UsageError
from muster.deploy.core.plan.source_tree import scan
from muster.deploy.core.plan.spec import Program
from tests.command_lines import parse

SAYS = "import sys; print('ran', *sys.argv[1:])\n"


def program(project: Path, script: str, args: str = "") -> Program:
    return launch_program.program_of(scan(project), project, script=script, module="", args=args)


def ran(project: Path, known: Program) -> subprocess.CompletedProcess[str]:
    """The end of the program as a rank runs it, whatever MPI is there."""
    argv = [sys.executable, *known.argv(abort_with_mpi=False)]
    return subprocess.run(argv, cwd=project, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["pkg", "pkg/", "app.zip", "tool", "plain", "-u.py", "./-u.py"])
def test_what_python_runs_is_run_by_python(name: str, tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__main__.py").write_text(SAYS)
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", SAYS)
    (tmp_path / "tool").write_text(f"#!/usr/bin/env python3\n{SAYS}")
    for plain in ("plain", "-u.py"):
        (tmp_path / plain).write_text(SAYS)
    known = program(tmp_path, name, "a")
    assert known.runner == ()
    assert ran(tmp_path, known).stdout == "ran a\n"


@pytest.mark.parametrize(
    ("name", "first", "runner"),
    [
        ("run.sh", "", ("sh",)),
        ("run.bash", "", ("bash",)),
        ("run.sh", "#!/bin/bash -e\n", ("/bin/bash", "-e")),
        ("run", "#! /usr/bin/env bash\n", ("/usr/bin/env", "bash")),
        ("-run.sh", "", ("sh",)),
    ],
)
def test_a_shell_script_runs(name: str, first: str, runner: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / name).write_text(f'{first}echo ran "$@"\nexit 7\n')
    known = program(tmp_path, name, "'a b' c")
    assert known.runner == runner
    assert known.argv(abort_with_mpi=True) == known.argv(abort_with_mpi=False)  # mpi4py is for Python
    ended = ran(tmp_path, known)
    assert (ended.stdout, ended.returncode) == ("ran a b c\n", 7)


def test_what_cannot_run_is_refused_with_what_to_type(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "train.py").touch()
    (tmp_path / "prog").write_bytes(b"\x7fELF\x02")
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("data", "")
    for name, content in {
        "train.ipynb": '{"cells": [], "nbformat": 4}',
        "config.yaml": "epochs: 3\nname: large\n",
        "config.json": '{"epochs": 3, "name": null}',
        "json.py": "\n[{}]\n",
        "empty": "",
        "README.md": "# Title\n\nTo train, start it.\n",
        "model.pt": "\x80\x02}\0",
        "picture.py": "P\0",
    }.items():
        (tmp_path / name).write_text(content)
    for script, complaint in {
        "sub": r"script sub: a folder without __main__.py; name a file in it: launch sub/FILE.py",
        "prog": r'a compiled program; write a script that starts it, run.sh with the line exec ./prog "\$@"',
        "data.zip": r"script data.zip: a zip archive without __main__.py",
        "train.ipynb": r"a notebook, not a program; launch from inside it \(docs/how-to/python.md\), or make",
        "config.yaml": "script config.yaml: not a program of Python or a shell, but data without a statement",
        "config.json": "not a program of Python or a shell, but data without",
        "json.py": "not a program of Python or a shell, but data without",
        "empty": "not a program of Python or a shell, but data without",
        "README.md": r"not a program of Python or a shell \(line 3: ",
        "model.pt": "not a program of Python or a shell, but binary data",
        "picture.py": "not a program of Python or a shell, but binary data",
        "python train.py --lr 1": r"; Muster starts Python itself: launch train.py --lr 1",
        "bash run.sh": r"; Muster starts bash itself: launch run.sh",
        "empty --lr 1": r"; without quotes: launch empty --lr 1",
        "bash": r"script bash: no program of this folder; Muster starts bash itself: launch SCRIPT",
        "python3.12": r"no program of this folder; Muster starts Python itself: launch SCRIPT",
        "/usr/bin/python3 -u train.py": r"Muster starts Python itself: launch train.py$",
        "python -m torch.distributed.run --np 2 train.py --lr 1": r"itself: launch train.py --lr 1$",
        "torchrun --nproc-per-node 4 train.py": r"Muster starts the ranks itself: launch train.py$",
        "mpirun -np 2 python -m pack.age -x": r"Muster starts the ranks itself: launch -m pack.age -x$",
        "accelerate launch": r"Muster starts the ranks itself: launch SCRIPT ...$",
        "uv run train.py": r"Muster starts Python itself: launch train.py$",
    }.items():
        with pytest.raises(UsageError, match=complaint):
            program(tmp_path, script)
        first, *rest = script.split()
        if "itself" in complaint:  # the same without quotes
            with pytest.raises(UsageError, match=complaint):
                program(tmp_path, first, " ".join(rest))


def test_a_folder_that_git_ignores_does_not_travel(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__main__.py").write_text(SAYS)
    (tmp_path / ".musterignore").write_text("pkg/\n")
    with pytest.raises(UsageError, match="script pkg: ignored by git"):
        program(tmp_path, "pkg")


def test_words_with_a_dash_say_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("-x.py", "-y.py"):
        (tmp_path / name).write_text(SAYS)
    for words, said in {
        ("-u", "x.py"): "unknown option -u: leave it out: the output of ranks is unbuffered",
        ("-y.py",): "to launch the file of this name: muster launch ./-y.py",
        ("-x.py",): "to launch the file of this name: muster launch ./-x.py",  # -x VALUE is an option
    }.items():
        with pytest.raises(SystemExit) as end:
            main(["launch", *words])
        assert end.value.code == 2
        assert said in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"to run it: launch ./-y.py a"):
        launch_program.program_of(scan(tmp_path), tmp_path, script="", module="", args="-y.py a")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("trian.py", "script trian.py: no such file; did you mean train.py?"),
        ("'my scrip.py'", "script 'my scrip.py': no such file; did you mean 'my script.py'?"),
        (
            "-- python train.py -v",
            "python would be an argument of muster.train; to run it: launch train.py -v",
        ),
        ("-m __main__", "--module __main__: Python has no such module; name the package: -m PACKAGE"),
        ("-m train.py", "--module train.py: a file is no module; to run it: launch train.py; as a module: "),
        ("-m sub/train.py", "--module sub/train.py: a file is no module; to run it: launch sub/train.py; "),
        ("-m ./sub/train", "--module ./sub/train: a file is no module; to run it: launch ./sub/train.py; "),
        ("-m .train", "--module .train: not a module name; write package.module, without a leading dot"),
    ],
)
def test_a_program_that_is_not_there_is_answered_with_what_to_type(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train.py", "my script.py", "hosts.txt"):
        (tmp_path / name).write_text("" if name.endswith(".py") else "localhost")
    monkeypatch.chdir(tmp_path)
    assert run(["launch", *shlex.split(words)]) == 2
    assert capsys.readouterr().err.startswith(said)


def notes(project: Path, script: str, args: str, module: str = "") -> list[str]:
    tree = scan(project)
    known = launch_program.program_of(tree, project, script=script, module=module, args=args)
    return [*launch_program.notes_of(known, tree, args)]


def test_options_after_the_script_that_only_muster_has_are_noted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("parser.add_argument('--backend')")
    assert notes(
        tmp_path, "train.py", "--backend gloo --detach -N 2 --max-restarts=3 -x A=1 -v --epochs 3"
    ) == [
        f"note: {text} goes to train.py; for Muster write it before train.py"
        for text in ("--detach", "-N 2", "--max-restarts=3", "-x A=1")
    ]
    assert notes(tmp_path, "", "", "trian") == ["note: no module trian here; did you mean train?"]


@pytest.mark.parametrize(
    "option",
    [
        *(
            "--dry-run",
            "--dry",
            "--dry_run",
            "-dry-run",
            "--np 4",
            "--np=4",
            "-np 4",
            "-n 4",
            "-n4",
            "--ntasks 4",
        ),
        *("--num_processes 4", "--hosts h.txt", "-H h.txt", "-hostfile h.txt", "--machinefile h.txt", "-H"),
        *("--include node1", "-include node1", "--exclude=node1"),
    ],
)
@pytest.mark.parametrize("name", ["train.py", "-m train", "run.sh"])
def test_a_launcher_option_after_the_script_is_refused(option: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import numpy as np\nhosts, exclude = 1, n -n\nnp.zeros(-n)\n")
    (tmp_path / "run.sh").write_text("python train.py\n")
    script, module = ("", "train") if name.startswith("-m") else (name, "")
    with pytest.raises(UsageError) as error:
        notes(tmp_path, script, f"--epochs 3 {option} x", module)
    taken = option if "h.txt" in option or not option.endswith("-H") else "-H x"
    assert f"for Muster: launch {taken} {name}; for the program: launch {name} -- {taken}" in str(error.value)
    assert notes(tmp_path, script, f"-- {option}", module) == []
    assert notes(tmp_path, script, f"--epochs 3 -- {option}", module) == []


@pytest.mark.parametrize(
    ("source", "args"),
    [
        ("add_argument('--dry-run')", "--dry-run"),
        ("@click.option('-n', '--number')", "-n 4"),
        ("def main(dry_run: bool = False): ...", "--dry-run"),
        ("class Arguments:\n    include: str = ''\n", "--include x"),
        ("flags.DEFINE_integer('np', 4, '')", "--np=4"),
    ],
)
def test_an_option_that_the_program_mentions_is_left_to_it(source: str, args: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import options")
    (tmp_path / "options.py").write_text(source)
    assert notes(tmp_path, "train.py", args) == []


def test_two_dashes_after_the_script_are_not_passed_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAYS)
    for words, args in {
        "train.py -- --dry-run": ("--dry-run",),
        "-m train -- --np 4": ("--np", "4"),
        "--script train.py -- --np 4": ("--np", "4"),
        "train.py a -- b": ("a", "--", "b"),
        "train.py -- -- b": ("--", "b"),
    }.items():
        values = parse(["launch", *shlex.split(words)]).values
        script, module = values.get("--script", ""), values.get("--module", "")
        known = launch_program.program_of(
            scan(tmp_path), tmp_path, script=script, module=module, args=values["--args"]
        )
        assert known.args == args
    assert parse(["launch", "--", "--epochs", "3"]).values == {"--args": "--epochs 3"}


def test_a_script_is_named_from_the_folder_of_the_launch(tmp_path: Path) -> None:
    (tmp_path / "hello").mkdir()
    (tmp_path / "hello" / "train.py").touch()
    assert program(tmp_path / "hello", "../hello/train.py").script == "train.py"


def test_a_script_elsewhere_says_where_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("hello/train.py", "repo/src/train.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(SAYS)
    (tmp_path / "repo" / ".git").mkdir()
    (tmp_path / "here").mkdir()
    for script, said in {
        "../hello/train.py": "cd ~/hello && muster launch train.py",
        str(tmp_path / "repo/src/train.py"): "cd ~/repo && muster launch src/train.py",
    }.items():
        with pytest.raises(UsageError) as refused:
            program(tmp_path / "here", script)
        assert str(refused.value).endswith(f"its own tree: {said}")


def test_without_git_the_hosts_file_is_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    for name in ("hosts.txt", "conf/base.yaml", "scripts/train.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("localhost slots=1\n")
    monkeypatch.chdir(project / "scripts")

    def top(hosts: str = "") -> Path | None:
        return _above(project / "scripts", LaunchOptions(hosts=hosts))

    assert top() == project
    tree = scan(project / "scripts", top())
    assert (tree.root, tree.within) == (project, "scripts")
    assert "conf/base.yaml" in {file.path for file in tree.files}
    assert top("../hosts.txt") is None
    monkeypatch.setenv("HOME", str(project))  # a home folder is no project
    assert top() is None


def test_a_launch_without_a_program_beside_one_says_what_it_trains(tmp_path: Path) -> None:
    def note() -> str:
        return "".join(launch_program.note_of_default(scan(tmp_path)))

    (tmp_path / "fabfile.py").touch()
    assert note() == ""
    (tmp_path / "pretrain.py").touch()
    assert note().endswith("yours: muster launch pretrain.py")
    (tmp_path / "data.py").touch()
    assert note() == ""  # which one?
    (tmp_path / "train.py").touch()
    assert note().endswith("Muster's own network on handwritten digits; yours: muster launch train.py")
