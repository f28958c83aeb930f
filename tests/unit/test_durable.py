"""Files that a crash leaves whole, and content that is checked before it is used."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.connect.cluster import Cluster
from muster.deploy.core.connect.transports.process import LocalPipe
from muster.deploy.core.errors import MusterError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.received_paths import inner_path, inner_paths, is_dot_git
from muster.deploy.core.wire import durable
from muster.deploy.core.wire.durable import (
    keep_if_intact,
    read_intact,
    read_sealed,
    sync,
    write_atomically,
    write_sealed,
)
from muster.deploy.core.wire.private_folders import identity_of_folder
from muster.deploy.features.adhoc import put_get as transfer
from tests.crashes import WORKS, Disk, watched
from tests.damage import DAMAGE

CONTENT = b"print(1)\n" * 100
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The order in which bytes, names and folders reach the disk."""
    made: list[str] = []
    fsync, replace = os.fsync, os.replace

    def record_sync(descriptor: int) -> None:
        made.append("fsync " + Path(f"/proc/self/fd/{descriptor}").readlink().suffix)
        fsync(descriptor)

    def record_replace(source: Any, target: Any) -> None:
        made.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_replace)
    return made


def test_bytes_are_synced_before_their_name_and_the_folder_after_it(tmp_path: Path, calls: list[str]) -> None:
    write_atomically(tmp_path / "job.json", b"{}")
    assert calls == ["fsync .new", "rename", "fsync "]


def test_many_files_are_synced_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(durable, "sync_file_system", synced.append)
    files = [tmp_path / str(number) for number in range(100)]
    for path in files:
        path.write_bytes(b"")
    sync(files)
    assert synced == files[:1]


def test_a_real_file_system_is_synced(tmp_path: Path) -> None:
    durable.sync_file_system(tmp_path)


def test_a_folder_that_was_removed_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        write_atomically(tmp_path / "runs" / "result.json", b"{}")
    assert error.value.filename == str(tmp_path / "runs" / "result.json")


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_has_another_hash_is_removed(tmp_path: Path, kind: str) -> None:
    for check in (read_intact, keep_if_intact):
        path = tmp_path / "content"
        path.write_bytes(CONTENT)
        assert check(path, DIGEST)
        DAMAGE[kind](path)
        assert not check(path, DIGEST)
        assert not os.path.lexists(path)


def test_what_another_host_put_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "content"
    path.write_bytes(b"")

    def heal(path: Path) -> str:
        write_atomically(path, CONTENT)
        return "the digest of the file that was there before"

    monkeypatch.setattr(durable, "digest_of", heal)
    assert not keep_if_intact(path, DIGEST)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_sealed_value_that_was_damaged_is_none(tmp_path: Path, kind: str) -> None:
    value = {"layers": [1, 2.5, None], "name": "é"}
    write_sealed(tmp_path / "note.json", value)
    assert read_sealed(tmp_path / "note.json") == value
    DAMAGE[kind](tmp_path / "note.json")
    assert read_sealed(tmp_path / "note.json") is None


def test_every_flipped_bit_of_a_sealed_value_is_noticed(tmp_path: Path) -> None:
    path, value = tmp_path / "note.json", {"version": "2.6.0", "size": 12}
    write_sealed(path, value)
    good = path.read_bytes()
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1
        path.write_bytes(bad)
        assert read_sealed(path) in (None, value), bytes(bad)


@pytest.mark.parametrize("kind", [kind for kind in DAMAGE if kind not in {"a folder", "unreadable"}])
def test_hosts_whose_words_were_damaged_do_not_seem_to_share_a_folder(tmp_path: Path, kind: str) -> None:
    words = []
    for host in ("node1", "node2"):
        path = tmp_path / host
        identity_of_folder(path)
        DAMAGE[kind](path)
        words.append(identity_of_folder(path))
        assert identity_of_folder(path) == words[-1]
    assert words[0] != words[1]
    assert all(len(word) == 32 for word in words)


# -- the power goes at every moment at which something is synced or renamed: no content is ever wrong --


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("names_first", [True, False], ids=["names first", "names last"])
@pytest.mark.parametrize("name", WORKS)
def test_no_power_cut_leaves_wrong_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, names_first: bool, share: float
) -> None:
    # The disk is simulated: the real one need not be waited for.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(durable, "sync_file_system", lambda folder: None)
    work, folder, crashed = WORKS[name], tmp_path / "live", tmp_path / "crashed"
    folder.mkdir()
    work.prepare(folder)
    disk = Disk(folder)
    points: list[Path] = []

    def crash(call: str, what: Any) -> None:
        if call == "before":  # what comes after a call is the same as what comes before the next
            points.append(crashed / str(len(points)))
            disk.after_crash(points[-1], names_first=names_first, share=share)
        elif call == "fsync":
            disk.sync(Path(f"/proc/self/fd/{what}").readlink())
        elif call == "sync_file_system":
            disk.sync_all()
        disk.forget_unused()

    with watched(crash):
        work.act(folder)
    done = tmp_path / "done"
    disk.after_crash(done, names_first=names_first, share=share)
    assert points
    for point in points:
        work.check(point, False)
    work.check(done, True)


# -- no path that a host names becomes a file of a git repository here, or a file outside of its folder --


SPELLINGS = [
    *(".git", ".GIT", ".gIt", ".git ", ".git.", ".git . .", "git~1", "GIT~1", "git~2", "git~1."),
    *(".git:x", ".git::$INDEX_ALLOCATION", "GIT~1:x", ".g\u200cit", "\ufeff.git", ".git\u200d", ".gi\u2060t"),
    *("\uff0egit", ".\uff27it", ".g\u202eit", ".g\u206fit.", ".g\u00adit"),
]
OTHERS = [".gitignore", ".github", ".gitattributes", "git", "agit~1", "git~", "x.git", ".git2", "gitlab~1"]


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_that_a_file_system_takes_for_dot_git_is_refused(name: str) -> None:
    for path in (name, f"a/{name}", f"{name}/config", f"a/{name}/b", f"a\\{name}\\b"):
        with pytest.raises(MusterError, match=r"^node1: .* belongs to a git repository; "):
            inner_path(path, "node1")


@pytest.mark.parametrize("name", OTHERS)
def test_names_that_only_look_like_it_come(name: str) -> None:
    assert not is_dot_git(name)
    assert str(inner_path(f"a/{name}")) == f"a/{name}"


@pytest.mark.parametrize("path", ["", ".", "/etc/passwd", "../x", "a/../../x", "a\0b"])
def test_a_path_out_of_the_folder_is_refused(path: str) -> None:
    with pytest.raises(MusterError, match="not a path inside"):
        inner_path(path)


@pytest.mark.parametrize("below", ["", "deep/", "deep/RES/"])
def test_a_repository_without_dot_git_is_refused(below: str) -> None:
    inner_paths(["HEAD", "a/refs/x", "b/objects/y", "refs"])  # not of one folder
    with pytest.raises(MusterError, match="is a git repository"):
        inner_paths([f"{below}Head", f"{below}objects/pack/x", f"{below}refs"])


# ---- every command that brings files -----------------------------------------------------------------------


def test_get_brings_no_repository(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "sub" / ".git").mkdir(parents=True)
    (there / "sub" / ".git" / "config").write_text("[core]\n\tfsmonitor = false\n")
    with (
        Cluster(hostfile.parse("localhost"), lambda host: LocalPipe(None), facts=False) as cluster,
        pytest.raises(MusterError, match=r"localhost: 'sub/.git' belongs to a git repository"),
    ):
        transfer.get(cluster, str(there), here).require_all()
    assert not list(here.iterdir())
