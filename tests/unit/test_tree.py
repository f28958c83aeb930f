"""What a launch takes along."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from muster.deploy.cli.shared import TRAIN
from muster.deploy.core.errors import UsageError
from muster.deploy.core.plan import source_tree, walk
from muster.deploy.core.plan import source_tree as tree
from muster.deploy.core.plan.source_tree import scan
from muster.deploy.core.plan.walk import LONGEST_PATTERN, MOST_PATTERNS, Ignored, IgnoreFiles
from tests.unit.plans import make_plan


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def names(root: Path) -> list[str]:
    return [file.path for file in tree.scan(root).files]


def test_the_working_tree_without_what_git_ignores(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    write(tmp_path, tracked_py="1", new_py="2", runs__log="3", sub__deep_py="4")
    (tmp_path / ".gitignore").write_text("runs/\n")
    subprocess.run(["git", "-C", str(tmp_path), "add", "tracked.py"], check=True)
    assert names(tmp_path) == [".gitignore", "new.py", "sub/deep.py", "tracked.py"]


def test_a_file_deleted_but_still_in_the_index_stays_away(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    write(tmp_path, a_py="", b_py="")
    subprocess.run(["git", "-C", str(tmp_path), "add", "."], check=True)
    (tmp_path / "a.py").unlink()
    assert names(tmp_path) == ["b.py"]


def test_from_a_folder_of_a_git_tree_the_whole_tree_is_taken(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    write(tmp_path, a_py="", sub__b_py="")
    scanned = tree.scan(tmp_path / "sub")
    assert (scanned.root, scanned.within) == (tmp_path, "sub")
    assert [file.path for file in scanned.files] == ["a.py", "sub/b.py"]


def test_without_git_hidden_folders_and_environments_stay_away(tmp_path: Path) -> None:
    write(tmp_path, a_py="", runs__x="", venv__x="")
    for hidden in (".venv", "__pycache__"):
        (tmp_path / hidden).mkdir()
        (tmp_path / hidden / "x").write_text("")
    assert names(tmp_path) == ["a.py"]


def test_what_runs_have_left_and_keys_never_travel(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    job, draft = "20261121-120000-abcd", ".20261121-120000-abcd.x1.new"
    write(tmp_path, a_py="", runs__tracked_py="", sub__runs__new_py="", runs__new_py="")
    for path in (f"runs/{job}/job.json", f"elsewhere/{job}/log", f"runs/{draft}/log", ".muster/id_ed25519"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("secret")
    subprocess.run(
        ["git", "-C", str(tmp_path), "add", "runs/tracked.py", ".muster", f"runs/{job}"], check=True
    )
    assert names(tmp_path) == ["a.py", "runs/tracked.py"]  # what the user committed to runs/ is the user's
    shutil.rmtree(tmp_path / ".git")
    assert names(tmp_path) == ["a.py"]


def break_with_dubious_ownership(root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    return "dubious ownership"


def break_with_no_git(root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PATH", str(root))
    return "git: No such file or directory"


def break_with_a_broken_repository(root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (root / ".git" / "HEAD").unlink()
    return "not a git repository"


def break_with_a_broken_index(root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (root / ".git" / "index").write_text("no index")
    return "index file"


@pytest.mark.parametrize("within", [".", "sub"])
@pytest.mark.parametrize(
    "break_git",
    [
        break_with_dubious_ownership,
        break_with_no_git,
        break_with_a_broken_repository,
        break_with_a_broken_index,
    ],
)
def test_where_git_fails_its_words_are_told_and_nothing_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within: str, break_git: Callable[..., str]
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    write(tmp_path, a_py="", sub__private="x", sub__b_py="")
    (tmp_path / ".gitignore").write_text("private\n")
    said = break_git(tmp_path, monkeypatch)
    with pytest.raises(UsageError, match=f"git cannot list its files:\n.*{said}"):
        tree.scan(tmp_path / within)


def git(root: Path, *words: str) -> None:
    settings = ("protocol.file.allow=always", "user.name=a", "user.email=a@b")
    options = [option for setting in settings for option in ("-c", setting)]
    subprocess.run(["git", "-C", str(root), *options, *words], check=True, capture_output=True)


def repository(root: Path, **files: str) -> Path:
    """A repository in which these files are committed."""
    write(root, **files)
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "x")
    return root


def test_what_a_submodule_has_and_git_does_not_ignore_travels(tmp_path: Path) -> None:
    library = repository(tmp_path / "library", code_py="1", _gitignore="x")
    project = repository(tmp_path / "project", code_py="2")
    git(project, "submodule", "--quiet", "add", str(library), "library")
    write(project / "library", new_py="3", runs__log="4")
    (project / "library" / ".gitignore").write_text("ignored\n")
    (project / "library" / "ignored").write_text("5")
    listed = [name for name in names(project) if not name.startswith(".git")]
    assert listed == [
        "code.py",
        "library/.gitignore",
        "library/_gitignore",
        "library/code.py",
        "library/new.py",
    ]


def test_a_submodule_that_is_not_checked_out_is_named(tmp_path: Path) -> None:
    library = repository(tmp_path / "library", code_py="1")
    project = repository(tmp_path / "project", code_py="2")
    git(project, "submodule", "--quiet", "add", str(library), "third/library")
    git(project, "commit", "-q", "-m", "x")
    git(tmp_path, "clone", "-q", str(project), "clone")
    scanned = tree.scan(tmp_path / "clone")
    assert scanned.absent == ("third/library",)
    plan = make_plan("localhost", tree=scanned)
    assert plan.notes == (
        "submodule third/library is not checked out, so no host gets its files; git submodule update --init",
    )


@pytest.mark.parametrize("added", [False, True])
def test_a_clone_inside_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, added: bool) -> None:
    project = repository(tmp_path / "project", code_py="1")
    repository(project / "nanoGPT", train_py="2")
    if added:
        git(project, "add", ".")
    assert names(project) == ["code.py", "nanoGPT/train.py"]
    monkeypatch.setenv("GIT_DIR", str(project / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(project))
    assert names(project) == ["code.py", "nanoGPT/train.py"]


def test_another_work_tree_of_the_repository_stays_away(tmp_path: Path) -> None:
    project = repository(tmp_path / "project", code_py="1")
    git(project, "worktree", "add", "-q", "other")
    assert names(project) == ["code.py"]


@pytest.mark.parametrize("with_git", [True, False])
def test_names_that_are_not_utf_8_travel(tmp_path: Path, with_git: bool) -> None:
    if with_git:
        subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    name = os.fsdecode(b"caf\xe9.py")
    (tmp_path / name).write_text("")
    assert names(tmp_path) == [name]
    assert json.loads(json.dumps(tree.scan(tmp_path).listing()))[0][0] == name


def test_links_that_no_host_can_follow_are_all_named_with_what_to_do(tmp_path: Path) -> None:
    project = tmp_path / "project"
    write(project, sub__a_py="")
    for name, target in (("a", "b"), ("b", "a"), ("out", "../elsewhere"), ("sub/deep", "../../x/y")):
        (project / name).symlink_to(target)
    with pytest.raises(UsageError) as refused:
        tree.scan(project)
    first, *lines = str(refused.value).splitlines()
    assert first.startswith("4 links of the tree that no host can follow; remove them, list them in .muster")
    assert "muster data push" in first and "docs/how-to/own-project.md#links" in first
    assert [line.split(":")[0].strip().removeprefix(f"{project}/") for line in lines] == [
        *("a", "b", "out", "sub/deep")
    ]
    assert "leads back to itself" in lines[0] and "outside the tree" in lines[2]
    (project / ".musterignore").write_text("a\nb\nout\n/sub/deep\n")
    assert names(project) == [".musterignore", "sub/a.py"]


@pytest.mark.parametrize("with_git", [True, False])
def test_absolute_links_out_of_the_tree_are_kept_as_they_are(tmp_path: Path, with_git: bool) -> None:
    project, shared = tmp_path / "project", tmp_path / "shared"
    write(project, a_py="")
    write(shared, x__y="")
    if with_git:
        git(project, "init", "-q")
    (project / "data").symlink_to(shared)
    (project / "absent").symlink_to("/nowhere/at/all")
    (project / "through").symlink_to("data/x")
    (project / "around").symlink_to("../project/a.py")
    scanned = tree.scan(project)
    assert {file.path: file.link for file in scanned.files} == {
        "a.py": None,
        "absent": "/nowhere/at/all",
        "around": "a.py",  # the folder has another name there
        "data": str(shared),
        "through": "data/x",
    }
    assert scanned.links_out() == [("absent", "/nowhere/at/all"), ("data", str(shared))]
    plan = make_plan("localhost", tree=scanned)
    assert f"; every host must have: absent -> /nowhere/at/all, data -> {shared}\n" in str(plan)


def test_a_link_within_the_tree_leads_to_the_same_file_on_every_host(tmp_path: Path) -> None:
    write(tmp_path, a_py="x")
    (tmp_path / "link.py").symlink_to("a.py")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "link.py").symlink_to(tmp_path / "a.py")
    assert [(file.path, file.link) for file in tree.scan(tmp_path).files] == [
        ("a.py", None),
        ("link.py", "a.py"),
        ("sub/link.py", "../a.py"),
    ]


def test_names_that_a_shell_would_choke_on(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    strange = ["a b.py", "$(id).py", "new\nline.py", "ümlaut.py"]
    for name in strange:
        (tmp_path / name).write_text("")
    assert names(tmp_path) == sorted(strange)


def test_a_walk_ends_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_tree, "MOST_FILES", 50)
    monkeypatch.setattr(tree, "_read", lambda *words: pytest.fail("a file was read"))
    looked_at: list[str] = []
    lstat = os.lstat

    def look(path: Path) -> os.stat_result:
        looked_at.append(str(path))
        return lstat(path)

    monkeypatch.setattr(os, "lstat", look)
    for number in range(300):
        write(tmp_path, **{f"many__{number:03}": "x", f"more__{number:03}": "x"})
    with pytest.raises(UsageError) as refused:
        tree.scan(tmp_path)
    first, counted, *lines = str(refused.value).splitlines()
    assert first.startswith(
        f"{tmp_path} holds more than 50 files, and a launch sends at most 50 files: start the"
    )
    assert "start the launch in the folder of your project" in first
    assert "so far" in counted and lines == ["          51 files  more/"]
    assert len([path for path in looked_at if "many" in path or "more" in path]) < 60
    (tmp_path / ".musterignore").write_text("more/\nmany/\n")
    monkeypatch.undo()
    assert names(tmp_path) == [".musterignore"]


def test_folders_without_an_end_are_not_walked_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "MOST_FOLDERS", 20)
    (tmp_path / "/".join("d" * 30)).mkdir(parents=True)
    with pytest.raises(UsageError, match="holds more than 20 folders; start in the folder of your project"):
        tree.scan(tmp_path)


def test_a_tree_too_large_names_its_largest_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_tree, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(tree, "_read", lambda root, name, link: pytest.fail(f"{name} was read"))
    folders = [f"data{number:02}" for number in range(12)]
    for number, folder in enumerate(folders):
        (tmp_path / folder / "inner").mkdir(parents=True)
        for name in ("a.bin", "b.bin"):
            (tmp_path / folder / "inner" / name).touch()
            os.truncate(tmp_path / folder / "inner" / name, (number + 1) << 20)
    (tmp_path / "big.bin").touch()
    os.truncate(tmp_path / "big.bin", 23 << 20)
    with pytest.raises(UsageError) as refused:
        tree.scan(tmp_path)
    lines = str(refused.value).splitlines()
    assert "holds 179 MiB of files, and a launch sends at most 1 MiB: " in lines[0]
    assert [line.split() for line in lines[1:4]] == [
        ["24", "MiB", "data11/inner/"],
        ["23", "MiB", "big.bin"],
        ["22", "MiB", "data10/inner/"],
    ]
    assert len(lines) == 11


@pytest.mark.parametrize("in_git", [True, False])
def test_what_musterignore_lists_stays_here_also_if_git_tracks_it(tmp_path: Path, in_git: bool) -> None:
    (tmp_path / "docs" / "movies").mkdir(parents=True)
    write(tmp_path, train_py="x", notes="x")
    (tmp_path / "docs" / "movies" / "one.mp4").write_text("x")
    (tmp_path / "docs" / "keep.md").write_text("x")
    (tmp_path / ".musterignore").write_text("# large\n*.mp4\n/docs/**\n!/docs/keep.md\n.musterignore\n")
    if in_git:
        for words in (("init", "-q"), ("add", ".")):
            subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert {file.path for file in tree.scan(tmp_path).files} == {"train.py", "notes", "docs/keep.md"}


def test_an_archive_holds_each_wanted_content_once(tmp_path: Path) -> None:
    write(tmp_path, a_py="same", b_py="same", c_py="other")
    scanned = tree.scan(tmp_path)
    same = scanned.files[0].digest
    with tarfile.open(fileobj=io.BytesIO(scanned.archive([same]))) as tar:
        assert tar.getnames() == [same]


def test_a_log_that_grows_meanwhile_is_sent_as_it_was(tmp_path: Path) -> None:
    write(tmp_path, log="one\n")
    scanned = tree.scan(tmp_path)
    write(tmp_path, log="one\ntwo\n")
    (file,) = scanned.files
    with tarfile.open(fileobj=io.BytesIO(scanned.archive([file.digest]))) as tar:
        member = tar.extractfile(file.digest)
        assert member is not None
        assert member.read() == b"one\n"


def test_a_file_that_changed_since_is_named(tmp_path: Path) -> None:
    write(tmp_path, a_py="1", b_py="2")
    scanned = tree.scan(tmp_path)
    write(tmp_path, a_py="3")
    with pytest.raises(UsageError, match=r"a\.py: changed while it was sent"):
        scanned.archive([file.digest for file in scanned.files])
    (tmp_path / "a.py").unlink()
    with pytest.raises(UsageError, match=r"a\.py: was removed while the tree was read"):
        scanned.archive([file.digest for file in scanned.files])


def removing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove a file or link when it has been listed, before it is read."""
    listed = source_tree.links_of

    def then_remove(*arguments: Any) -> dict[str, str]:
        links = listed(*arguments)
        path.unlink()
        return links

    monkeypatch.setattr(tree, "links_of", then_remove)


@pytest.mark.parametrize("name", ["new.tmp", "link"])
@pytest.mark.parametrize("in_git", [True, False])
def test_a_vanished_file(name: str, in_git: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, train_py="1", **{"new.tmp": "2"})
    (tmp_path / "link").symlink_to("train.py")
    if in_git:
        for words in (("init", "-q"), ("add", "train.py")):
            subprocess.run(["git", *words], cwd=tmp_path, check=True)
    removing(tmp_path / name, monkeypatch)
    scanned = tree.scan(tmp_path)
    assert name not in {file.path for file in scanned.files}
    plan = make_plan("node1", tree=scanned)
    assert f"note: {name} was removed here during the launch, so the ranks run without it" in str(plan)


def test_a_tracked_file_that_vanishes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, train_py="1", model_py="2")
    for words in (("init", "-q"), ("add", ".")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    removing(tmp_path / "model.py", monkeypatch)
    with pytest.raises(UsageError, match=r"model\.py: was removed while the tree was read"):
        tree.scan(tmp_path)


def test_a_file_that_vanishes_before_it_is_sent_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, a_py="same", b="same", c="1", d="2")
    scanned = tree.scan(tmp_path)
    for name in ("a.py", "c"):
        (tmp_path / name).unlink()
    edits = tree.Edits()
    with tarfile.open(
        fileobj=io.BytesIO(scanned.archive([file.digest for file in scanned.files], edits))
    ) as tar:
        assert len(tar.getnames()) == 2
    left = scanned.after(edits)
    assert ([file.path for file in left.files], left.vanished) == (["a.py", "b", "d"], ("c",))


def test_a_file_that_git_does_not_track_may_change_once_before_it_is_sent(tmp_path: Path) -> None:
    write(tmp_path, a_py="same", b="same", c="1")
    scanned, edits = tree.scan(tmp_path), tree.Edits()
    write(tmp_path, b="longer than before", c="2")
    with tarfile.open(
        fileobj=io.BytesIO(scanned.archive([file.digest for file in scanned.files], edits))
    ) as tar:
        stored = {name: cast(Any, tar.extractfile(name)).read() for name in tar.getnames()}
    sent = scanned.after(edits)
    assert {file.path: stored[file.digest] for file in sent.files} == {
        "a.py": b"same",
        "b": b"same",
        "c": b"2",
    }
    write(tmp_path, c="3")
    with pytest.raises(UsageError, match=r"c: changed while it was sent; try again, or list it in .muster"):
        sent.archive([file.digest for file in sent.files], edits)


@pytest.mark.parametrize("in_git", [True, False])
def test_musterignore_holds_at_every_level(in_git: bool, tmp_path: Path) -> None:
    """As .gitignore does: the nearest file with a pattern decides, and it knows only its own folder."""
    places = ("", "inner/", "inner/deep/", "other/", "other/gone/")
    write(tmp_path, **{f"{folder}{name}": "x" for folder in places for name in ("key", "keep")})
    (tmp_path / ".musterignore").write_text("keep\ngone/\n")
    (tmp_path / "inner" / ".musterignore").write_text("key\n!keep\n")
    (tmp_path / "inner" / "deep" / ".musterignore").write_text("/keep\n")
    (tmp_path / "other" / "gone" / ".musterignore").write_text("!key\n")
    if in_git:
        for words in (("init", "-q"), ("add", ".")):
            subprocess.run(["git", *words], cwd=tmp_path, check=True)
    sent = {file.path for file in tree.scan(tmp_path).files if "ignore" not in file.path}
    assert sent == {"key", "inner/keep", "other/key"}


def test_without_git_the_advice_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_tree, "MAX_BYTES", 5)
    (tmp_path / "data.bin").write_text("too much")
    with pytest.raises(UsageError, match=r"in a folder whose name begins with '\.'; after git init, "):
        tree.scan(tmp_path)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    with pytest.raises(UsageError, match=r"keep data outside of it, or list it in \.gitignore"):
        tree.scan(tmp_path)


def test_without_git_a_link_to_a_folder_stays_here_where_a_folder_of_its_name_would(tmp_path: Path) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    write(project, train_py="", real__data="")
    elsewhere.mkdir()
    for name in (".muster", ".cache", "runs", "venv"):
        (project / name).symlink_to(elsewhere)
    (project / "link").symlink_to("real")
    assert names(project) == ["link", "real/data", "train.py"]


def test_the_library_of_ranks_has_the_practice_data() -> None:
    """So no host needs a package for the default training."""
    library = tree.of_package(TRAIN)
    (data,) = [file for file in library.files if not file.path.endswith(".py")]
    assert (data.path, data.size) == ("train/demo/digits.csv.gz", 57523)


# -- the patterns of `.gitignore` and `.musterignore` mean what git says, and no pattern takes long --


# Not in it: `a**/b`, of which git matches more than gitignore(5) says; `[[:alpha:]]`, and an open bracket.
ATOMS = (
    *("a", "b", "ab", "*", "?", "[a]", "[!a]", "[^b]", "[a-c]", "\\a", "\\*", "/", "/", "/**/", "!", "#"),
    *("]", "[]a]", "\\ ", "c*", "*a*b", "-", "[a-]", "[!]b]", "\\!", "\\#", ".", "*.", "[*]", "[?a]", " "),
)
NAMES = (
    *("a", "b", "ab", "c", "abc", "aab", "*", "[a", "!a", "#a", "a b", " a", "a ", "]", "-", "z", "a.b"),
    *("\\", "?", "A", "ba", "aXb", "[]", "new\nline"),
)


def ignored_by(root: Path, patterns: str) -> IgnoreFiles:
    (root / "ignored").write_bytes(patterns.encode())
    return IgnoreFiles(root, "ignored", follow_links=False)


def said_by_git(root: Path, patterns: str, paths: list[str]) -> dict[str, bool]:
    (root / ".git" / "info" / "exclude").write_text(patterns)
    argv = ["git", "-C", str(root), "-c", "core.excludesFile=", "check-ignore", "--no-index"]
    asked = "".join(f"{path}\0" for path in paths).encode()
    done = subprocess.run([*argv, "-z", "-v", "-n", "--stdin"], input=asked, capture_output=True, check=False)
    fields = done.stdout.decode().split("\0")[:-1]
    rows = [fields[place : place + 4] for place in range(0, len(fields), 4)]
    return {path: bool(pattern) and not pattern.startswith("!") for _, _, pattern, path in rows}


@pytest.mark.parametrize("seed", range(4))
def test_random_patterns_leave_out_what_git_leaves_out(seed: int, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    draw = random.Random(seed)  # noqa: S311
    for _ in range(20):
        lines = ["".join(draw.choices(ATOMS, k=draw.randint(1, 5))) for _ in range(draw.randint(1, 4))]
        patterns = "\n".join(
            draw.choice(("", "/**", "**/")) + line + draw.choice(("", "/")) for line in lines
        )
        paths = sorted({"/".join(draw.choices(NAMES, k=draw.randint(1, 4))) for _ in range(60)})
        ignored = ignored_by(tmp_path, patterns)
        expected = said_by_git(tmp_path, patterns, paths)
        assert {path: ignored.has(path) for path in paths} == expected, patterns


def test_what_is_in_an_ignored_folder_cannot_be_taken_back_by_itself(tmp_path: Path) -> None:
    ignored = ignored_by(tmp_path, "docs/\n!docs/keep.md\nlib/*\n!lib/keep.md\n")
    assert [ignored.has(path) for path in ("docs/keep.md", "lib/keep.md", "lib/a")] == [True, False, True]


@pytest.mark.parametrize(
    "pattern",
    [
        "*a" * 40 + "*b",
        "**/a/" * 40 + "b",
        "*" * 900,
        "[a-z]*" * 40 + "1",
        "?*" * 60 + "b",
        "/*a/**" * 40 + "/b",
    ],
)
def test_no_pattern_takes_long(pattern: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / ("a" * 200)).touch()
    (tmp_path / ".musterignore").write_text(f"{pattern}\n")
    began = time.process_time()
    deep = "/".join(["a"] * 300)
    IgnoreFiles(tmp_path, ".musterignore", follow_links=True).has(deep)
    scan(tmp_path)
    assert time.process_time() - began < 10  # pathspec would take longer than anybody lives


def test_more_patterns_than_any_project_has_are_refused_before_they_are_read() -> None:
    with pytest.raises(UsageError, match=r"x: more than 2000 lines of patterns"):
        Ignored.of("a\n" * (MOST_PATTERNS + 1), "x")
    with pytest.raises(UsageError, match=r"x:2:1: a pattern of more than 1000 characters"):
        Ignored.of("a\n" + "*a" * LONGEST_PATTERN, "x")
