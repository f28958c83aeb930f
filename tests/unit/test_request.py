"""From the words of a command line to values."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from muster.deploy.cli import option_values as request
from muster.deploy.cli import rank_program as launch_program
from muster.deploy.cli.launch import spec_of
from muster.deploy.cli.launch_options import LaunchOptions
from muster.deploy.core.errors import UsageError
from muster.deploy.core.plan import spec
from muster.deploy.core.plan.source_tree import scan
from muster.deploy.core.plan.spec import Program
from muster.deploy.core.wire.variables import OF_RANKS, is_foreign
from muster.deploy.features.why.options import WhyOptions


@pytest.fixture
def project(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "train").mkdir()
    for name in ("train/__main__.py", "their.py", "secret.py"):
        (tmp_path / name).write_text("")
    (tmp_path / ".gitignore").write_text("secret.py\n")
    return tmp_path


def program(place: Path, script: str = "", module: str = "", args: str = "") -> Program:
    return launch_program.program_of(scan(place), place, script=script, module=module, args=args)


def test_without_words_the_training_program_runs(project: Path) -> None:
    assert program(project) == Program(module="muster.train")


def test_a_script_and_its_arguments_as_a_shell_would_split_them(project: Path) -> None:
    assert program(project, script="their.py", args="--name 'a b' \"$HOME\" x\\;y") == Program(
        script="their.py", args=("--name", "a b", "$HOME", "x;y")
    )


def test_a_script_is_named_from_where_the_user_stands(project: Path) -> None:
    assert program(project / "train", script="../their.py").script == "../their.py"
    assert program(project / "train", script=str(project / "their.py")).script == "../their.py"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ({"script": "missing.py"}, "script missing.py: no such file"),
        ({"script": "."}, "script .: a folder without __main__.py; name a file in it: launch ./FILE.py"),
        ({"script": "/etc/hostname"}, "outside .*, the tree that a launch sends"),
        ({"script": "secret.py"}, "ignored by git"),
        ({"script": "their.py", "module": "train"}, "exclude each other"),
        ({"args": "'open"}, "--args .*No closing quotation"),
        ({"args": "their.py --epochs 3"}, "argument of muster.train; to run it: launch their.py --epochs 3"),
        ({"script": "their.py", "args": "--out '$MUSTER_OUT/x'"}, r'os.environ\["MUSTER_OUT"\]'),
        ({"script": "python3", "args": "their.py"}, "Muster starts Python itself"),
    ],
)
def test_a_program_that_cannot_be(project: Path, words: dict[str, str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        program(project, **words)


def test_the_environment_is_given_or_taken_from_here() -> None:
    own = {"HF_TOKEN": "hf_x"}
    assert request.environment(["A=1", "B=x=y z", "C=", "HF_TOKEN"], own) == (
        ("A", "1"),
        ("B", "x=y z"),
        ("C", ""),
        ("HF_TOKEN", "hf_x"),
    )


@pytest.mark.parametrize("setting", ["UNSET", "1A=2", "A B=1", "=1", "A;B=1", "LD$=1", "-x=1", "a\n=1"])
def test_an_environment_that_cannot_be(setting: str) -> None:
    with pytest.raises(UsageError, match="--env"):
        request.environment([setting], {})


def test_a_job_is_recorded_unless_the_user_declines() -> None:
    assert spec_of(LaunchOptions(), columns=None).of(WhyOptions).record
    assert not spec_of(LaunchOptions(no_record=True), columns=None).of(WhyOptions).record


@pytest.mark.parametrize(("text", "meant"), [("10.1.2.3/16", "10.1.0.0/16"), ("eth1", "eth1"), ("", "")])
def test_a_network_is_read(text: str, meant: str) -> None:
    assert spec.network(text) == meant


@pytest.mark.parametrize("text", ["10.1.0.0/33", "eth0,eth1", "a b", "10.1/x", "; reboot"])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--network"):
        spec.network(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("700", 700), ("2K", 2048), ("500M", 500 << 20), ("8g", 8 << 30), ("1T", 1 << 40)],
)
def test_a_size_has_a_letter_for_its_unit(text: str, size: int) -> None:
    assert spec.size("--max-log", text) == size


@pytest.mark.parametrize("text", ["", "G", "-1", "1.5G", "8GB", "8 G", "1e9"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--max-log .*: write a number of bytes such as 500M or 8G"):
        spec.size("--max-log", text)


@pytest.mark.parametrize("known", OF_RANKS)
def test_a_variable_that_tells_a_rank_who_it_is_is_refused(known: str) -> None:
    name = known.replace("*", "SIZE")
    for given in (f"{name}=1", name):
        with pytest.raises(UsageError, match=f"^--env {name}: Muster and its launcher set {name} in every"):
            request.environment([given], {name: "1"})
    assert is_foreign(name)


@pytest.mark.parametrize(
    "name", ["OMPI_MCA_btl", "PRTE_MCA_x", "PMIX_MCA_x", "OMP_NUM_THREADS", "TMPDIR", "RANKS", "MUSTER"]
)
def test_a_setting_of_a_launcher_is_the_user_s(name: str) -> None:
    assert request.environment([f"{name}=1"], {}) == ((name, "1"),)
