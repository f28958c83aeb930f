"""Hints about the files and modules that a rank missed, and the line about the files that a job left."""

from __future__ import annotations

import dataclasses
import subprocess
from concurrent.futures import Future
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest

from muster.deploy.core.connect.requests import WrittenFiles
from muster.deploy.core.errors import MusterError
from muster.deploy.core.job.result import Failure, LaunchResult
from muster.deploy.core.job.run_folder import RunFolder
from muster.deploy.core.job.verdict import verdict
from muster.deploy.core.plan.launch_plan import Contribution
from muster.deploy.core.plan.source_tree import Tree, TreeFile
from muster.deploy.core.plan.spec import Program
from muster.deploy.core.text.terminal import harmless
from muster.deploy.features.hints.file_hints import left_behind, missing_module, sent_elsewhere
from muster.deploy.features.written_files.driver import Written, WrittenFilesOfHosts, WrittenFinding
from tests.unit.attempts import attempt_of
from tests.unit.plans import NODE, NOTHING, make_plan

PLAN = make_plan("node[1-3] slots=2")
CODE = f"{PLAN.hosts[0].folder}/code"
NONE = WrittenFiles(0, 0, more=False)
DONE = LaunchResult(plan=PLAN, started=1.0, ended=2.0, failure=None, ends={})
FAILED = dataclasses.replace(DONE, failure=Failure("rank", "exit status 1", 1, host="node1", rank=0))
STOPPED = dataclasses.replace(DONE, failure=Failure("stopped", "muster stop, by ann", 143))


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
        ("'data/x y.bin'", "the file here/data/x y.bin is here, but was not sent"),
        ("b'data/x y.bin'", "the file here/data/x y.bin is here, but was not sent"),
        ("'../top.bin'", "the file top.bin is here, but was not sent"),
        (f"'{CODE}/here/data/x y.bin'", "the file here/data/x y.bin is here, but was not sent"),
        ("'data'", "the folder here/data is here, but was not sent"),
        ("'empty/new.txt'", "the folder here/empty is here, but was not sent"),
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
    module: str, *files: str, within: str = ".", script: str = "train.py", added: Contribution = NOTHING
) -> str:
    tree = Tree(Path("/work"), within, tuple(TreeFile(name, False, "ab" * 32) for name in files))
    line = f"ModuleNotFoundError: No module named '{module}'\n"
    failure = Failure("rank", "exit status 1", 1, host="node1", rank=0, tail=("Traceback\n", line))
    spec: dict[str, Any] = {"program": Program(script=script), "tree": tree}
    plan = make_plan("node[1-3] slots=2", added=added, **spec)
    return missing_module(dataclasses.replace(DONE, plan=plan, failure=failure), {}, here=False)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with files that git ignores, beside a folder that PYTHONPATH of this shell names."""
    top = tmp_path / "project"
    for name in ("pkg/__init__.py", "pkg/rpc/__init__.py", "pkg/rpc/time_pb2.py", "pkg/logging2.py"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).touch()
    (top / "fastop.cpython-311-x86_64-linux-gnu.so").touch()
    (top / ".gitignore").write_text("*_pb2.py\n*.so\nlog*\ndata/\n")
    (top / "data").mkdir()
    (top / "data" / "x.bin").touch()
    subprocess.run(["git", "init", "-q", top], check=True)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "mine.py").touch()
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}/lib:{top}")
    return top


def hint_in(project: Path, line: str, torch: str | None = None, of_others: str | None = None) -> str:
    sent = ("pkg/__init__.py", "pkg/rpc/__init__.py", "train.py")
    tree = Tree(project, ".", tuple(TreeFile(name, False, "ab" * 32) for name in sent))
    failure = Failure("rank", "exit status 1", 1, host="node1", rank=0, tail=("Traceback\n", f"{line}\n"))
    plan = make_plan("node[1-3] slots=2", program=Program(script="train.py"), tree=tree)
    result = dataclasses.replace(DONE, plan=plan, failure=failure)
    facts = {
        "node1": dataclasses.replace(NODE, torch=torch),
        "node2": dataclasses.replace(NODE, torch=of_others),
    }
    return missing_module(result, facts, here=True) or left_behind(result)


def test_a_missing_module_that_the_program_did_without_is_not_named(root: Path) -> None:
    head = "Traceback (most recent call last):\n"
    handled = (head, "ModuleNotFoundError: No module named 'apex'\n", "it goes on\n")
    failure = Failure(
        "rank", "exit status 1", 1, host="node1", rank=0, tail=(*handled, head, "KeyError: 1\n")
    )
    result = dataclasses.replace(DONE, failure=failure)
    assert missing_module(result, {}, here=False) == ""
    only = dataclasses.replace(result, failure=dataclasses.replace(failure, tail=handled))
    assert "apex" in missing_module(only, {}, here=False)


NO_MODULE = "ModuleNotFoundError: No module named "
EXTENSION = "fastop.cpython-311-x86_64-linux-gnu.so"
IGNORED = "the {} {} is here, but was not sent: git ignores it (.gitignore:{}); {}change the rule"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            f"{NO_MODULE}'pkg.logging2'",
            IGNORED.format("file", "pkg/logging2.py", "3: log*", "") + ", or git add -f pkg/logging2.py",
        ),
        (
            f"{NO_MODULE}'fastop'",
            IGNORED.format("file", EXTENSION, "2: *.so", "") + f", or git add -f {EXTENSION}",
        ),
        (
            "ImportError: cannot import name 'time_pb2' from 'pkg.rpc' (/home/ml/pkg/rpc/__init__.py)",
            IGNORED.format("file", "pkg/rpc/time_pb2.py", "1: *_pb2.py", "")
            + ", or git add -f pkg/rpc/time_pb2.py",
        ),
        (
            f"{MISSING}'data/x.bin'",
            IGNORED.format("file", "data/x.bin", "4: data/", "copy it with muster put, or "),
        ),
        (
            f"{MISSING}'data/new.bin'",
            IGNORED.format("folder", "data", "4: data/", "copy it with muster put, or "),
        ),
        (
            f"{NO_MODULE}'pkg.gone'",
            "the pkg that Python found on node1 has no pkg.gone; is it another version of it?",
        ),
        ("ImportError: cannot import name 'gone' from 'pkg.rpc' (/home/ml/pkg/rpc/__init__.py)", ""),
        (
            f"{NO_MODULE}'a..b.'",
            "the a that Python found on node1 has no a..b.; is it another version of it?",
        ),
    ],
)
def test_an_unsent_module_is_named_with_the_rule(project: Path, line: str, said: str) -> None:
    assert hint_in(project, line) == said


def test_a_module_that_only_this_shell_finds_is_no_package_of_an_index(project: Path) -> None:
    said = hint_in(project, f"{NO_MODULE}'mine'")
    assert said.startswith(f"mine is in {project.parent}/lib, which only PYTHONPATH of this shell names; ")


def test_a_host_without_the_torch_of_the_others_is_named(project: Path) -> None:
    said = hint_in(project, f"{NO_MODULE}'torch'", of_others="2.6.0")
    assert said == "node1 has no torch, and other hosts have one; muster check names what fixes it"
    assert hint_in(project, f"{NO_MODULE}'torch'").startswith("node1 has no torch; list its package")


def test_the_hint_about_a_package_says_that_the_torch_of_the_hosts_stays(project: Path) -> None:
    line = f"{NO_MODULE}'einops'"
    listed = "node1 has no einops; list its package in a file, and launch with --requirements FILE"
    assert hint_in(project, line) == listed
    assert (
        hint_in(project, line, torch="2.6.0") == f"{listed}; their own torch stays unless that needs another"
    )


def elsewhere(name: str, *files: str, within: str = ".", module: str | None = None) -> str:
    program = Program(module=module) if module else Program(script="sub/t.py")
    tree = Tree(Path("/work"), within, tuple(TreeFile(name, False, "ab" * 32) for name in files))
    failure = Failure("rank", "exit status 1", 1, host="node1", rank=0, tail=(f"{MISSING}{name!r}\n",))
    plan = make_plan("node[1-3] slots=2", program=program, tree=tree)
    return sent_elsewhere(dataclasses.replace(DONE, plan=plan, failure=failure))


@pytest.mark.parametrize(
    ("name", "files", "within", "folder", "script"),
    [
        ("config.yaml", ("sub/t.py", "sub/config.yaml"), ".", "sub", "t.py"),
        ("conf/a.yaml", ("sub/t.py", "sub/conf/a.yaml"), ".", "sub", "t.py"),
        ("./config.yaml", ("sub/t.py", "sub/config.yaml"), ".", "sub", "t.py"),
        ("config.yaml", ("config.yaml", "a/sub/t.py"), "a", "..", "a/sub/t.py"),
        ("data/x", ("my data/data/x", "sub/t.py"), ".", "'my data'", "../sub/t.py"),
    ],
)
def test_a_file_that_was_sent_names_the_folder_to_start_in(
    name: str, files: tuple[str, ...], within: str, folder: str, script: str
) -> None:
    full = PurePosixPath(folder.strip("'"), name)
    assert elsewhere(name, *files, within=within) == (
        f"{full} was sent, but the ranks start in the folder of the launch; "
        f"cd {folder}, then: launch {script}"
    )


def test_a_module_stays_where_it_is_and_names_the_path_to_its_file() -> None:
    said = elsewhere("c.yaml", "pkg/train.py", "pkg/c.yaml", module="pkg.train")
    assert said == (
        "pkg/c.yaml was sent, but the ranks start in the folder of the launch; the program can open "
        "Path(__file__).parent / 'c.yaml'"
    )


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("config.yaml", ("config.yaml", "sub/t.py")),  # it is there: the program moved
        ("config.yaml", ("a/config.yaml", "b/config.yaml", "sub/t.py")),  # which one?
        ("/etc/config.yaml", ("sub/config.yaml", "sub/t.py")),
        ("../../x", ("x", "sub/t.py")),
        ("a\0b", ("sub/t.py",)),
    ],
)
def test_no_folder_is_named_for_other_files(name: str, files: tuple[str, ...]) -> None:
    assert elsewhere(name, *files) == ""


@pytest.mark.parametrize(
    ("module", "files", "within", "path"),
    [
        ("mingpt", ("mingpt/__init__.py", "projects/adder/adder.py"), ".", "."),
        ("mingpt.model", ("mingpt/__init__.py", "mingpt/model.py"), "projects/adder", "../.."),
        ("pkg", ("src/pkg/__init__.py", "old/src/pkg/__init__.py"), ".", "src"),
        ("helper", ("my tools/helper.py",), ".", "'my tools'"),
    ],
)
def test_a_module_elsewhere_in_the_tree(module: str, files: tuple[str, ...], within: str, path: str) -> None:
    assert module_hint(module, *files, within=within) == (
        f"the tree has a module {module}, where Python does not look; add --env PYTHONPATH={path}"
    )


def test_a_missing_package_is_looked_for_in_the_projects_own_list() -> None:
    files = ("requirements.txt", "imagenet/requirements.txt", "imagenet/main.py")
    said = "node1 has no torchvision; launch with --requirements {} if that lists it"
    assert module_hint("torchvision", *files, script="imagenet/main.py") == said.format(
        "imagenet/requirements.txt"
    )
    assert module_hint("torchvision", *files) == said.format("requirements.txt")
    assert module_hint("torchvision", *files, within="imagenet") == said.format("requirements.txt")


@pytest.mark.parametrize("files", [("train.py",), ("below/requirements.txt",)])
def test_a_missing_package_that_nothing_here_lists_names_the_option(files: tuple[str, ...]) -> None:
    assert module_hint("torchvision", *files) == (
        "node1 has no torchvision; list its package in a file, and launch with --requirements FILE"
    )


def test_a_package_that_the_requirements_lack_is_added_to_them() -> None:
    advice = "the packages of this launch have no {name}; add its package to the requirements"
    said = module_hint("torchvision", "requirements.txt", added=Contribution(if_module_is_missing=advice))
    assert said == advice.replace("{name}", "torchvision")


def test_a_module_of_pythons_own_library_is_no_package() -> None:
    said = "the Python of node1 has no json, a part of Python's own library; name another one with --python"
    assert module_hint("json", "requirements.txt") == said


def test_the_missing_program_of_a_launch_is_a_module_too() -> None:
    tail = ("/usr/bin/python3: No module named lightning\n",)
    failure = Failure("rank", "exit status 1", 1, host="node1", rank=0, tail=tail)
    plan = make_plan("node1 slots=2", program=Program(module="lightning"))
    said = missing_module(dataclasses.replace(DONE, plan=plan, failure=failure), {}, here=True)
    assert said.startswith("node1 has no lightning; list its package")


def test_a_verdict_says_where_outputs_are_and_how_large(tmp_path: Path) -> None:
    left = {"node1": Written(NONE, WrittenFiles(1, 3 << 20, more=False), "a" * 32)} | dict.fromkeys(
        ("node2", "node3"), Written(NONE, WrittenFiles(10_000, 100, more=True), "b" * 32)
    )
    said = verdict(DONE.having(WrittenFinding(left)), RunFolder(tmp_path, PLAN.spec.job))
    assert "beside the code" not in said
    place = f"~/.muster/jobs/{PLAN.spec.job}/out"
    assert f"out: more than 10000 files, 100 B in {place} on node[2-3]" in said
    assert f"out: 1 file, 3 MiB in {place} on node1" in said


@pytest.mark.parametrize(
    ("beside", "text"),
    [
        (
            {"node1": WrittenFiles(4, 44 << 20, more=False, largest="checkpoints/last.pt")},
            "checkpoints/last.pt and 3 more, 44 MiB on node1; muster get {job} fetches them; "
            "the next launch starts without them",
        ),
        (
            {"node2": WrittenFiles(1, 2048, more=False, largest="o\x1b[31mut")},
            harmless("o\x1b[31mut")
            + ", 2 KiB on node2; muster get {job} fetches it; the next launch starts without it",
        ),
        (
            {"node1": WrittenFiles(0, 0, more=True)},
            "unknown, because the search stopped at its limits on node1; muster get {job} fetches them; "
            "the next launch starts without them",
        ),
        (
            dict.fromkeys(("node1", "node2"), WrittenFiles(10_000, 9 << 30, more=True, largest="a" * 4096)),
            f"{'a' * 120}... and more than 9999 more, 9 GiB on node[1-2]; muster get {{job}} fetches them; "
            "the next launch starts without them",
        ),
    ],
)
@pytest.mark.parametrize("ended", [DONE, FAILED, STOPPED])
def test_a_verdict_says_what_lies_beside_the_code(
    ended: LaunchResult, beside: dict[str, WrittenFiles], text: str, tmp_path: Path
) -> None:
    written = {host: Written(files, NONE, "a" * 32) for host, files in beside.items()}
    result = ended.having(WrittenFinding(written))
    said = verdict(result, RunFolder(tmp_path, PLAN.spec.job))
    assert f"written beside the code: {text.format(job=PLAN.spec.job)}\n" in said
    assert [row["host"] for row in result.as_json()["written"]] == [*beside]


def answering(answer: Written | MusterError, *, ended: bool = False) -> SimpleNamespace:
    """The channel of a host that answers so."""
    future = Future[Written]()
    if isinstance(answer, MusterError):
        future.set_exception(answer)
    else:
        future.set_result(answer)
    return SimpleNamespace(ended=ended, post=lambda request: future, wait=lambda *_: future.result())


def test_hosts_that_left_the_job_are_searched_while_they_answer_and_named_else(tmp_path: Path) -> None:
    def host(files: WrittenFiles, *, ended: bool = False) -> SimpleNamespace:
        return answering(Written(files, NONE, files.largest * 32), ended=ended)

    first = WrittenFiles(1, 2048, more=False, largest="a")
    channels = {
        "node1": host(WrittenFiles(0, 0, more=False)),
        "node2": host(first),
        "node3": host(first, ended=True),
    }
    cluster: Any = SimpleNamespace(channels=channels, silent={})
    attempt, feature = attempt_of(PLAN, cluster), WrittenFilesOfHosts()
    result = feature.ended(dataclasses.replace(attempt, next_hosts=frozenset({"node1"})), FAILED)
    assert result.as_json()["written"] == []
    for name in ("node2", "node3"):
        del channels[name]
    plan = make_plan("node1 slots=2")
    result = feature.ended(dataclasses.replace(attempt, plan=plan), dataclasses.replace(DONE, plan=plan))
    result = feature.over(dataclasses.replace(result, left_out={"node2": "failed twice", "node3": "gone"}))
    said = verdict(result, RunFolder(tmp_path, PLAN.spec.job))
    assert "written beside the code: a, 2 KiB on node2; muster get" in said
    assert "        not searched for files: node3: it did not answer any more\n" in said


def test_a_host_that_was_not_searched_is_named_though_no_file_was_found(tmp_path: Path) -> None:
    feature = WrittenFilesOfHosts()
    channels: Any = {"node1": answering(Written(NONE, WrittenFiles(1, 9, more=False), None))}
    channels["node2"] = answering(Written(NONE, WrittenFiles(1, 9, more=False), None))
    channels["node3"] = answering(MusterError("no space is left", host="node3"))
    cluster: Any = SimpleNamespace(channels=channels, silent={})
    said = verdict(feature.ended(attempt_of(PLAN, cluster), DONE), RunFolder(tmp_path, PLAN.spec.job))
    assert f"out: 1 file, 9 B in ~/.muster/jobs/{PLAN.spec.job}/out on node[1-2]\n" in said
    assert "        not searched for files: node3: no space is left\n" in said
