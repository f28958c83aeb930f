"""What a verdict says of files: those that a rank missed though they are here, and those that a job left."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.connect.requests.launch import Outputs
from muster.deploy.jobs.hints import left_behind, missing_module, refused_option
from muster.deploy.jobs.run_folder import RunFolder
from muster.deploy.jobs.verdict import verdict
from muster.deploy.launch.result import Failure, LaunchResult
from muster.deploy.plan.program import Program
from muster.deploy.plan.source_tree import Tree, TreeFile
from tests.unit.plans import make_plan

PLAN = make_plan("node[1-3] slots=2")
CODE = f"{PLAN.hosts[0].folder}/code"
DONE = LaunchResult(plan=PLAN, started=1.0, ended=2.0, failure=None, ends={})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with `here/train.py`, which travelled, and data that did not."""
    for name in ("here/train.py", "here/data/x y.bin", "top.bin"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "here" / "empty").mkdir()
    return tmp_path


def hint(root: Path, line: str) -> str:
    tree = Tree(root, "here", (TreeFile("here/train.py", False, "ab" * 32),))
    failure = Failure("rank", "exit status 1", 1, host="node1", rank=0, tail=("Traceback\n", line, "\n"))
    return left_behind(
        dataclasses.replace(DONE, plan=make_plan("node[1-3] slots=2", tree=tree), failure=failure)
    )


MISSING = "FileNotFoundError: [Errno 2] No such file or directory: "


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("'data/x y.bin'", "the file here/data/x y.bin exists here, but was not sent"),
        ("b'data/x y.bin'", "the file here/data/x y.bin exists here, but was not sent"),
        ("'../top.bin'", "the file top.bin exists here, but was not sent"),
        (f"'{CODE}/here/data/x y.bin'", "the file here/data/x y.bin exists here, but was not sent"),
        ("'data'", "the folder here/data exists here, but was not sent"),
        ("'empty/new.txt'", "the folder here/empty exists here, but was not sent"),
    ],
)
def test_a_file_that_is_here_and_did_not_travel_is_named(root: Path, name: str, said: str) -> None:
    assert hint(root, f"{MISSING}{name}\n").startswith(said)


@pytest.mark.parametrize(
    "line",
    [
        f"{MISSING}'train.py'\n",  # it travelled
        f"{MISSING}'of-nobody.bin'\n",
        f"{MISSING}'/etc/passwd'\n",
        f"{MISSING}'../../etc/passwd'\n",
        f"{MISSING}'a\\x00b'\n",
        f"{MISSING}__import__('os')\n",
        f"{MISSING}'{'x' * 5000}'\n",
        f"{MISSING}\n",
        "ValueError: 'data/x y.bin'\n",
    ],
)
def test_nothing_is_said_of_other_files(root: Path, line: str) -> None:
    assert hint(root, line) == ""


def module_hint(
    module: str, *files: str, within: str = ".", script: str = "train.py", environment: str = ""
) -> str:
    tree = Tree(Path("/work"), within, tuple(TreeFile(name, False, "ab" * 32) for name in files))
    line = f"ModuleNotFoundError: No module named '{module}'\n"
    failure = Failure("rank", "exit status 1", 1, host="node1", rank=0, tail=("Traceback\n", line))
    spec: dict[str, Any] = {"program": Program(script=script), "environment": environment, "tree": tree}
    plan = make_plan("node[1-3] slots=2", **spec)
    return missing_module(dataclasses.replace(DONE, plan=plan, failure=failure))


@pytest.mark.parametrize(
    ("module", "files", "within", "path"),
    [
        ("mingpt", ("mingpt/__init__.py", "projects/adder/adder.py"), ".", "."),
        ("mingpt.model", ("mingpt/__init__.py",), "projects/adder", "../.."),
        ("pkg", ("src/pkg/__init__.py", "old/src/pkg/__init__.py"), ".", "src"),
        ("helper", ("my tools/helper.py",), ".", "'my tools'"),
    ],
)
def test_a_module_of_the_tree_that_python_does_not_find_is_shown_the_way(
    module: str, files: tuple[str, ...], within: str, path: str
) -> None:
    name = module.partition(".")[0]
    assert module_hint(module, *files, within=within) == (
        f"the tree has a module {name}, where Python does not look; add --env PYTHONPATH={path}"
    )


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("t.py: error: unrecognized arguments: --np 3\n", "--np"),
        ("t.py: error: unrecognized arguments: --stall-timeout=3\n", "--stall-timeout"),
        ("Error: No such option: --np Did you mean --npy?\n", "--np"),
        ("t.py: error: unrecognized arguments: --never-given\n", ""),  # a rank may print anything
        ("t.py: error: argument --np: invalid int value\n", ""),
    ],
)
def test_an_option_of_launch_after_the_script_is_told(line: str, option: str) -> None:
    failure = Failure("rank", "exit status 2", 2, host="node1", rank=0, tail=("usage: t.py\n", line))
    program = Program(script="t.py", args=("--np", "3", "--stall-timeout=3"))
    plan = dataclasses.replace(PLAN, spec=dataclasses.replace(PLAN.spec, program=program))
    hint = f"the program got {option}; an option of muster launch stands before the script" if option else ""
    assert refused_option(dataclasses.replace(DONE, plan=plan, failure=failure)) == hint


def test_a_missing_package_is_looked_for_in_the_projects_own_list() -> None:
    files = ("requirements.txt", "imagenet/requirements.txt", "imagenet/main.py")
    said = "the hosts have no torchvision; launch with --requirements {} if that lists it"
    assert module_hint("torchvision", *files, script="imagenet/main.py") == said.format(
        "imagenet/requirements.txt"
    )
    assert module_hint("torchvision", *files) == said.format("requirements.txt")
    assert module_hint("torchvision", *files, within="imagenet") == said.format("requirements.txt")


@pytest.mark.parametrize(
    ("files", "environment"), [(("train.py",), ""), (("requirements.txt",), "0123456789abcdef0123")]
)
def test_nothing_is_said_of_a_package_that_nothing_here_lists(
    files: tuple[str, ...], environment: str
) -> None:
    assert module_hint("torchvision", *files, environment=environment) == ""


def test_a_verdict_says_where_outputs_are_and_how_large(tmp_path: Path) -> None:
    left = {"node1": Outputs(1, 3 << 20, more=False)} | dict.fromkeys(
        ("node2", "node3"), Outputs(10_000, 100, more=True)
    )
    said = verdict(dataclasses.replace(DONE, outputs=left), RunFolder(tmp_path, PLAN.spec.job))
    place = f"~/.muster/jobs/{PLAN.spec.job}/out"
    assert f"out: more than 10000 files, 100 B in {place} on node[2-3]" in said
    assert f"out: 1 file, 3 MiB in {place} on node1" in said
