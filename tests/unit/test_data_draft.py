"""What an interrupted push has left in a draft is believed only where it is right; manifests have bounds."""

from __future__ import annotations

import hashlib
import json
import os
import tracemalloc
from pathlib import Path

import pytest

from muster.deploy.features.data.on_host import sets as sets_module
from muster.deploy.features.data.on_host.sets import Draft, Sets, Version
from muster.deploy.features.data.wire import manifest as module
from muster.deploy.features.data.wire.manifest import (
    CHUNK,
    MOST_NAMES,
    Chunks,
    File,
    Manifest,
    parse,
    require_sound,
    scan,
)

FIRST, SECOND = b"a" * CHUNK, b"the end"


def adopted(folder: Path, content: bytes, *, executable: bool = False) -> Draft:
    """A draft of one file, `x`, after it has looked at what is in its folder."""
    pieces = [content[start : start + CHUNK] for start in range(0, len(content), CHUNK)]
    digests = tuple(hashlib.sha256(piece).hexdigest() for piece in pieces)
    manifest = Manifest((File("x", len(content), executable, digests),))
    draft = Draft(str(folder), Chunks(manifest))
    draft.adopt()
    return draft


def finished(folder: Path, content: bytes) -> None:
    """Leave a draft of a file that is complete: read-only, with its time."""
    draft = adopted(folder, content)
    for number, start in enumerate(range(0, len(content), CHUNK)):
        draft.place(number, content[start : start + CHUNK])
    draft.finish()


def test_a_read_only_file_with_a_wrong_part_is_sent_again_as_a_whole(tmp_path: Path) -> None:
    finished(tmp_path / "draft", FIRST + b"another")
    draft = adopted(tmp_path / "draft", FIRST + SECOND)
    assert {*draft.lacking} == {0, 1}
    assert not (tmp_path / "draft" / "x").exists()
    draft.place(0, FIRST)
    draft.place(1, SECOND)
    draft.finish()
    assert (tmp_path / "draft" / "x").read_bytes() == FIRST + SECOND


def test_a_file_that_is_being_written_keeps_the_chunks_that_it_has(tmp_path: Path) -> None:
    adopted(tmp_path / "draft", FIRST + SECOND).place(0, FIRST)
    assert {*adopted(tmp_path / "draft", FIRST + SECOND).lacking} == {1}


@pytest.mark.parametrize("content", [SECOND, FIRST + SECOND], ids=["one chunk", "two chunks"])
def test_a_file_that_may_be_executed_now_is_published_so(tmp_path: Path, content: bytes) -> None:
    finished(tmp_path / "draft", content)
    draft = adopted(tmp_path / "draft", content, executable=True)
    for number in [*draft.lacking]:
        draft.place(number, content[number * CHUNK : (number + 1) * CHUNK])
    draft.finish()
    assert (tmp_path / "draft" / "x").stat().st_mode & 0o777 == 0o555


def test_a_complete_file_is_not_sent_again(tmp_path: Path) -> None:
    for content in (SECOND, FIRST + SECOND):
        finished(tmp_path / str(len(content)), content)
        assert adopted(tmp_path / str(len(content)), content).lacking == {}


def test_folders_above_files_of_the_set_stay_and_others_go(tmp_path: Path) -> None:
    for name in ("a/b", "a/bc", "ab"):
        (tmp_path / "draft" / name).mkdir(parents=True)
    manifest = Manifest((File("a/b/x", 1, False, ("a" * 64,)),))
    Draft(str(tmp_path / "draft"), Chunks(manifest)).adopt()
    left = {str(path.relative_to(tmp_path / "draft")) for path in (tmp_path / "draft").rglob("*")}
    assert left == {"a", "a/b"}


# -- bounds --


def test_a_manifest_of_many_lists_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 MB of zeros and brackets, compressed, would become 23 GB of lists."""
    made: list[str] = []
    monkeypatch.setattr(module, "MOST_SIGNS", 100)
    monkeypatch.setattr(json, "loads", made.append)
    for sign in (b"[],", b"{},", b'"a",'):
        with pytest.raises(ValueError, match="too large to read safely; put small files into archives"):
            parse(b"[" + sign * 100 + b"1]")
    assert made == []


def test_the_largest_data_set_stays_below_the_bound_of_its_text() -> None:
    few = Manifest(tuple(File(str(one), 2 * CHUNK, False, ("a" * 64, "b" * 64)) for one in range(1000)))
    signs = sum(map(few.text().count, (b"{", b"[", b","))) / 1000
    more_chunks = module.MOST_CHUNKS - 2 * module.MOST_ENTRIES  # a comma each
    assert signs * module.MOST_ENTRIES + more_chunks < module.MOST_SIGNS


def test_a_path_of_very_many_names_is_refused(tmp_path: Path) -> None:
    deepest = "/".join("d" * MOST_NAMES)
    whole = Manifest((), (), (deepest,))
    assert parse(whole.text()) == whole
    for deep in (
        Manifest((), (), (f"{deepest}/d",)),
        Manifest((), (module.ManifestLink("l", f"{deepest}/d"),)),
    ):
        with pytest.raises(ValueError, match=f"a path of more than {MOST_NAMES} names"):
            parse(deep.text())
    (tmp_path / deepest / "d").mkdir(parents=True)
    with pytest.raises(ValueError, match=f"a path of more than {MOST_NAMES} names: 'd/d/"):
        scan(str(tmp_path))


def test_the_folders_above_all_files_are_never_in_memory_at_once(tmp_path: Path) -> None:
    """A manifest of 1 MB may name very many long paths, each below folders of its own."""
    below = "/".join(["d" * 20] * (MOST_NAMES - 1))
    manifest = Manifest(tuple(File(f"{one}/{below}"[:2600], 0, False, ()) for one in range(1000)))
    tracemalloc.start()
    try:
        require_sound(manifest)
        Draft(str(tmp_path), Chunks(manifest)).adopt()
        assert tracemalloc.get_traced_memory()[1] < 20 << 20  # the folders alone would be 160 MB
    finally:
        tracemalloc.stop()


def test_files_of_a_set_are_synced_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut could leave a set in place whose files are empty: pushes and ranks do not read it."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_bytes(b"bytes")
    manifest = scan(str(tmp_path / "source"))
    sets, version = Sets(tmp_path / "data", tmp_path / "jobs"), Version("digits", manifest.digest)
    draft = Draft(sets.draft_folder(version), Chunks(manifest))
    draft.adopt()
    draft.place(0, b"bytes")
    synced: list[tuple[str, bool]] = []

    def note(folder: str) -> None:
        synced.append((folder, (tmp_path / "data" / "digits").exists()))

    monkeypatch.setattr(sets_module, "sync_file_system", note)
    sets.publish(version, draft)
    assert synced == [(os.fsdecode(draft.folder), False)]
    assert (tmp_path / "data" / "digits" / "a").read_bytes() == b"bytes"
