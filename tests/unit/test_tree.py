"""What a launch takes along."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from deploy import tree
from deploy.errors import UsageError


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


def test_names_that_a_shell_would_choke_on(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    strange = ["a b.py", "$(id).py", "new\nline.py", "ümlaut.py"]
    for name in strange:
        (tmp_path / name).write_text("")
    assert names(tmp_path) == sorted(strange)


def test_a_link_within_the_tree_stays_a_link(tmp_path: Path) -> None:
    write(tmp_path, a_py="x")
    (tmp_path / "link.py").symlink_to("a.py")
    assert [(file.path, file.link) for file in tree.scan(tmp_path).files] == [
        ("a.py", None),
        ("link.py", "a.py"),
    ]


def test_a_link_out_of_the_tree_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to("/etc")
    with pytest.raises(UsageError, match="links to /etc, outside the tree"):
        tree.scan(tmp_path)


def test_a_tree_too_large_names_its_largest_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MAX_BYTES", 1 << 20)
    (tmp_path / "big.bin").write_bytes(b"x" * (2 << 20))
    with pytest.raises(UsageError, match=r"big.bin alone 2 MiB"):
        tree.scan(tmp_path)


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
    with pytest.raises(UsageError, match=r"a\.py: cannot be read any more: No such file"):
        scanned.archive([file.digest for file in scanned.files])
