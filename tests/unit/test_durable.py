"""Files that a crash leaves whole, and content that is checked before it is used."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

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


def test_what_another_host_has_put_there_meanwhile_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
