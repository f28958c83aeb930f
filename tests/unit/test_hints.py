"""What a verdict says of files: those that a rank missed though they are here, and those that a job left."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from muster.deploy.connect.requests.launch import Outputs
from muster.deploy.jobs.hints import left_behind
from muster.deploy.jobs.run_folder import RunFolder
from muster.deploy.jobs.verdict import verdict
from muster.deploy.launch.result import Failure, LaunchResult
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
    return left_behind(dataclasses.replace(DONE, plan=dataclasses.replace(PLAN, tree=tree), failure=failure))


MISSING = "FileNotFoundError: [Errno 2] No such file or directory: "


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("'data/x y.bin'", "the file here/data/x y.bin is here, but did not travel"),
        ("b'data/x y.bin'", "the file here/data/x y.bin is here, but did not travel"),
        ("'../top.bin'", "the file top.bin is here, but did not travel"),
        (f"'{CODE}/here/data/x y.bin'", "the file here/data/x y.bin is here, but did not travel"),
        ("'data'", "the folder here/data is here, but did not travel"),
        ("'empty/new.txt'", "the folder here/empty is here, but did not travel"),
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


def test_a_verdict_says_where_outputs_are_and_how_large(tmp_path: Path) -> None:
    left = {"node1": Outputs(1, 3 << 20, more=False)} | dict.fromkeys(
        ("node2", "node3"), Outputs(10_000, 100, more=True)
    )
    said = verdict(dataclasses.replace(DONE, outputs=left), RunFolder(tmp_path, PLAN.spec.job))
    place = f"~/.muster/jobs/{PLAN.spec.job}/out"
    assert f"out: more than 10000 files, 1 KiB in {place} on node[2-3]" in said
    assert f"out: 1 file, 3.0 MiB in {place} on node1" in said
