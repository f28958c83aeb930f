"""A repository names commands, and a launch runs none of them: each test has one that would make a file."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.deploy.core.errors import UsageError
from muster.deploy.core.plan.git import git_root
from muster.deploy.core.plan.source_tree import scan

pytestmark = pytest.mark.slow  # several processes a test

MUSTER = Path(sys.executable).parent / "muster"


def git(root: Path, *words: str) -> str:
    settings = ("protocol.file.allow=always", "user.name=a", "user.email=a@b")
    options = [option for setting in settings for option in ("-c", setting)]
    argv = ["git", "-C", str(root), *options, *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def repository(root: Path) -> Path:
    """A repository with a program, a data folder and a committed file in each."""
    (root / "data").mkdir(parents=True)
    (root / "train.py").write_text("print('ran')\n")
    (root / "data" / "a.txt").write_text("a\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "x")
    return root


def internal(root: Path) -> Path:
    """The folder of a repository: `.git`, or that of a submodule."""
    return Path(git(root, "rev-parse", "--absolute-git-dir"))


def names(root: Path) -> list[str]:
    return [file.path for file in scan(root).files]


def program(root: Path) -> tuple[str, Path]:
    """A command that leaves a proof, and the proof."""
    proof = root.parent / "owned"
    path = root.parent / "command"
    path.write_text(f"#!/bin/sh\ntouch {proof}\n")
    path.chmod(0o755)
    return str(path), proof


# ---- what the settings of a repository may name ------------------------------------------------------------


def fsmonitor(root: Path, command: str) -> None:
    git(root, "config", "core.fsmonitor", command)


def included(root: Path, command: str) -> None:
    (internal(root) / "more").write_text(f"[core]\n\tfsmonitor = {command}\n")
    git(root, "config", "include.path", "more")


def of_one_work_tree(root: Path, command: str) -> None:
    git(root, "config", "extensions.worktreeConfig", "true")
    git(root, "config", "--worktree", "core.fsmonitor", command)


def missing_object(root: Path) -> None:
    """An index that cannot be listed without a tree that is missing, which git fetches from a promisor."""
    git(root, "sparse-checkout", "init", "--cone", "--sparse-index")
    git(root, "sparse-checkout", "set", "elsewhere")
    tree = git(root, "rev-parse", "HEAD:data")
    (internal(root) / "objects" / tree[:2] / tree[2:]).unlink()
    git(root, "config", "core.repositoryformatversion", "1")
    git(root, "config", "extensions.partialClone", "evil")
    git(root, "config", "remote.evil.promisor", "true")


def fetched_from_a_folder(root: Path, command: str) -> None:
    missing_object(root)
    git(root, "config", "remote.evil.url", str(root))
    git(root, "config", "remote.evil.uploadpack", command)


def fetched_by_a_command(root: Path, command: str) -> None:
    missing_object(root)
    git(root, "config", "remote.evil.url", f"ext::{command}")
    git(root, "config", "protocol.ext.allow", "always")


def fetched_over_ssh(root: Path, command: str) -> None:
    missing_object(root)
    git(root, "config", "remote.evil.url", "ssh://localhost/x")
    git(root, "config", "core.sshCommand", command)
    git(root, "config", "protocol.ssh.allow", "always")


def hooks(root: Path, command: str) -> None:
    folder = internal(root) / "hooks"
    folder.mkdir(exist_ok=True)
    for name in ("post-index-change", "fsmonitor-watchman", "post-checkout", "reference-transaction"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(command)
    git(root, "config", "core.hooksPath", str(folder))
    os.utime(root / "train.py", (1, 1))  # the index is to be refreshed


def programs_for_content(root: Path, command: str) -> None:
    """What git runs for content, for people and for credentials: ls-files does none of it."""
    (root / ".gitattributes").write_text("* filter=evil diff=evil\n")
    for name in ("filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "diff.evil.textconv"):
        git(root, "config", name, command)
    for name in ("core.pager", "pager.ls-files", "credential.helper", "diff.external", "core.editor"):
        git(root, "config", name, command)
    git(root, "config", "alias.ls-files", f"!{command}")
    git(root, "config", "core.askPass", command)
    os.utime(root / "train.py", (1, 1))


def all_settings(root: Path, command: str) -> None:
    for spoil in (included, of_one_work_tree, hooks, programs_for_content):
        spoil(root, command)


SETTINGS = [fsmonitor, all_settings, fetched_from_a_folder, fetched_by_a_command, fetched_over_ssh]


@pytest.mark.parametrize("spoil", SETTINGS)
@pytest.mark.parametrize("where", ["the tree", "a clone in it", "a clone that is added", "a submodule"])
def test_no_setting_runs_a_command(spoil: Callable[[Path, str], None], where: str, tmp_path: Path) -> None:
    project = repository(tmp_path / "project")
    evil = project
    if where != "the tree":
        evil = project / "inner"
        if where == "a submodule":
            git(project, "submodule", "--quiet", "add", str(repository(tmp_path / "library")), "inner")
        else:
            repository(evil)
        if where == "a clone that is added":
            git(project, "add", "inner")
    command, proof = program(project)
    spoil(evil, command)
    try:
        assert "train.py" in names(project)
    except UsageError as error:
        assert "git cannot list its files" in str(error)  # an object that is missing
    assert not proof.exists()


@pytest.mark.parametrize("spoil", [fsmonitor, fetched_from_a_folder])
def test_a_dry_run_runs_nothing_of_a_repository(spoil: Callable[[Path, str], None], tmp_path: Path) -> None:
    project = repository(tmp_path / "project")
    command, proof = program(project)
    spoil(project, command)
    (tmp_path / "hosts.txt").write_text("localhost slots=1\n")
    argv = [str(MUSTER), "launch", "--dry-run", "--hosts", "../hosts.txt", "train.py"]
    done = subprocess.run(argv, cwd=project, capture_output=True, text=True, check=False)
    said = "run in" if spoil is fsmonitor else "git cannot list its files"
    assert said in done.stdout + done.stderr
    assert not proof.exists()


def test_what_runs_and_keys_hold_is_never_read_as_a_repository(tmp_path: Path) -> None:
    project = repository(tmp_path / "project")
    for folder in ("runs", ".muster", "sub/runs"):
        repository(project / folder / "inner")
    assert names(project) == ["data/a.txt", "train.py"]


# ---- other files than those of the tree --------------------------------------------------------------------


def test_the_tree_is_the_folder_of_the_repository_whatever_its_settings_say(tmp_path: Path) -> None:
    project, secret = repository(tmp_path / "project"), tmp_path / "secret"
    secret.mkdir()
    (secret / "train.py").write_text("secret")
    git(project, "config", "core.worktree", str(secret))
    scanned = scan(project / "data")
    assert scanned.root == project.resolve()
    assert [file.path for file in scanned.files] == ["data/a.txt", "train.py"]


LONG = "x" * 300


@pytest.mark.parametrize(
    "name", [f"a/{LONG}", "../secret", "./../secret", "/etc/hostname", ".git/config", "lk/secret"]
)
def test_an_index_names_no_file_outside_of_its_tree(name: str, tmp_path: Path) -> None:
    project = repository(tmp_path / "project")
    (tmp_path / "secret").write_text("secret")
    (project / "lk").symlink_to("data")
    (project / "data" / "secret").write_text("secret")
    placeholder = ("xx/" if len(name) % 2 == 0 else "x/") + "/".join("x" * (len(name) // 2 - 1))
    placeholder += "x" * (len(name) - len(placeholder))
    (project / placeholder).parent.mkdir(parents=True)
    (project / placeholder).write_text("x")
    git(project, "add", placeholder, "lk")
    (project / placeholder).unlink()
    index = project / ".git" / "index"
    content = index.read_bytes()[:-20].replace(placeholder.encode(), name.encode())
    index.write_bytes(content + hashlib.sha1(content).digest())  # noqa: S324  # git's checksum
    assert name in git(project, "ls-files").split("\n")
    assert names(project) == ["data/a.txt", "data/secret", "lk", "train.py"]


def test_a_repository_without_a_folder_of_its_own_is_no_root(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--bare", "results")
    assert git_root(tmp_path / "results") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_repository_of_a_stranger_in_a_shared_folder_does_not_count(tmp_path: Path) -> None:
    root = repository(tmp_path / "shared")
    assert git_root(root / "data") == root
    os.chown(root / ".git", 12345, 12345)
    assert git_root(root / "data") is None
    (root / ".git").rename(tmp_path / "own")
    (root / ".git").symlink_to(tmp_path / "own")
    os.chown(tmp_path / "own", 0, 0)
    os.chown(root / ".git", 12345, 12345, follow_symlinks=False)
    assert git_root(root / "data") is None  # a link to a repository of this user
    os.chown(root, 12345, 12345)
    assert git_root(root / "data") == root  # a team's: git asks for safe.directory


def test_variables_of_git_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, other = repository(tmp_path / "project"), repository(tmp_path / "other")
    (other / "more.py").write_text("")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    assert names(project) == ["data/a.txt", "train.py"]


# ---- a repository in the tree that is no submodule ---------------------------------------------------------


def test_a_clone_in_the_tree_is_read_with_its_gitignore_and_without_git(tmp_path: Path) -> None:
    project = repository(tmp_path / "project")
    clone = repository(project / "clone")
    (clone / ".gitignore").write_text("*.bin\n!keep.bin\n/out/\n")
    for path in ("a.bin", "keep.bin", "out/x", "sub/out/y", "sub/z.bin", ".venv/lib.py", "venv/lib.py"):
        (clone / path).parent.mkdir(parents=True, exist_ok=True)
        (clone / path).write_text("")
    (clone / "sub" / ".gitignore").write_text("!z.bin\n")
    (clone / ".git" / "index").write_text("broken")  # git could not read it
    inner = [name.removeprefix("clone/") for name in names(project) if name.startswith("clone/")]
    listed = [".gitignore", "data/a.txt", "keep.bin", "sub/.gitignore", "sub/out/y", "sub/z.bin", "train.py"]
    assert inner == listed


# ---- the commit, and whether these are its files -----------------------------------------------------------


def commit_of(root: Path) -> tuple[str, bool]:
    tree = scan(root)
    return tree.commit, tree.clean


def test_a_tree_has_the_commit_of_its_repository_and_may_be_clean(tmp_path: Path) -> None:
    project = repository(tmp_path / "project")
    (project / "link").symlink_to("train.py")
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "x")
    assert commit_of(project) == (git(project, "rev-parse", "HEAD"), True)
    os.utime(project / "train.py", (1, 1))
    assert commit_of(project / "data")[1], "its content is the same"
    (project / "runs").mkdir()
    (project / "runs" / "log").write_text("")
    assert commit_of(project)[1], "runs are not sent"


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "train.py").write_text("print('run')\n"),
        lambda root: (root / "data" / "a.txt").unlink(),
        lambda root: (root / "new.py").write_text(""),
        lambda root: ((root / "train.py").write_text("1"), git(root, "add", ".")),
        lambda root: git(root, "rm", "-q", "--cached", "train.py"),
        lambda root: ((root / "train.py").unlink(), (root / "train.py").symlink_to("data")),
    ],
    ids=["changed", "deleted", "new", "staged", "removed", "link"],
)
def test_a_changed_tree_is_not_clean(change: Callable[[Path], object], tmp_path: Path) -> None:
    project = repository(tmp_path / "project")
    change(project)
    assert commit_of(project) == (git(project, "rev-parse", "HEAD"), False)


def test_a_pipe_in_place_of_a_file_is_a_change(tmp_path: Path) -> None:
    project = repository(tmp_path / "project")
    (project / "train.py").unlink()
    os.mkfifo(project / "train.py")
    assert not commit_of(project)[1]


def test_a_submodule_at_another_commit_is_a_change(tmp_path: Path) -> None:
    project = repository(tmp_path / "project")
    git(project, "submodule", "--quiet", "add", str(repository(tmp_path / "library")), "inner")
    assert not commit_of(project)[1]
    git(project, "commit", "-q", "-m", "x")
    assert commit_of(project)[1]
    git(project / "inner", "commit", "-q", "--allow-empty", "-m", "y")
    assert commit_of(project)[1], "the same files"
    (project / "inner" / "train.py").write_text("")
    git(project / "inner", "commit", "-q", "-a", "-m", "z")
    assert not commit_of(project)[1]


def test_a_file_that_git_stores_in_another_form_is_not_a_change(tmp_path: Path) -> None:
    project = repository(tmp_path / "project")
    (project / ".gitattributes").write_text("*.bat eol=crlf\n")
    (project / "run.bat").write_bytes(b"a\r\nb\r\n")
    content = b"weights" * 100
    pointer = (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{hashlib.sha256(content).hexdigest()}\n"
    )
    (project / "w.bin").write_text(f"{pointer}size {len(content)}\n")
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "x")
    (project / "w.bin").write_bytes(content)
    assert commit_of(project)[1]
    (project / "w.bin").write_bytes(content.upper())
    assert not commit_of(project)[1]


def test_without_a_commit_there_is_none(tmp_path: Path) -> None:
    assert commit_of(tmp_path) == ("", False)
    git(tmp_path, "init", "-q")
    assert commit_of(tmp_path) == ("", False)
