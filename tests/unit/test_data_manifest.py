"""What a folder may hold to become a data set, what a manifest may say, and which chunks travel together."""

from __future__ import annotations

import json
import os
import socket
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.deploy.core.errors import UsageError
from muster.deploy.features.data import command as report
from muster.deploy.features.data.data_push import (
    Bundle,
    DataPushOutcome,
    DataPushResult,
    DataSource,
    bundles,
    source,
)
from muster.deploy.features.data.driver import DataSets
from muster.deploy.features.data.messages import DataSet, DataVerified
from muster.deploy.features.data.on_host import sets as module
from muster.deploy.features.data.on_host.sets import Draft, Sets, Version
from muster.deploy.features.data.wire import manifest as scanning
from muster.deploy.features.data.wire.manifest import (
    CHUNK,
    Chunks,
    File,
    Manifest,
    ManifestLink,
    Reader,
    bitmap,
    numbers,
    parse,
    require_name,
    scan,
    unpack,
)


def test_a_version_under_repair_is_hardly_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that reads it meanwhile opens its files by their names."""
    source, sets = tmp_path / "source", Sets(tmp_path / "data", tmp_path / "jobs")
    source.mkdir()
    (source / "file").write_text("whole")
    manifest = scan(str(source), lambda done, total: None)
    version = Version("x", manifest.digest)

    def publish() -> None:
        draft = Draft(sets.draft_folder(version), Chunks(manifest))
        draft.adopt()
        draft.link(0, os.fsencode(source / "file"))
        sets.publish(version, draft)

    publish()
    there = tmp_path / "data" / "x" / "file"
    seen: list[str] = []
    monkeypatch.setattr(module, "remove_tree", lambda folder: seen.append(there.read_text()))
    publish()
    assert {*seen} == {"whole"}


def test_a_draft_of_another_user_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").write_text("mine")
    (tmp_path / ".x.part").symlink_to("other")
    with pytest.raises(OSError, match="is not your folder"):
        Draft(str(tmp_path / ".x.part"), Chunks(SMALL)).adopt()
    assert (tmp_path / "other" / "precious").read_text() == "mine"


A, B, C = ("a" * 64, "b" * 64, "c" * 64)
SMALL = Manifest(
    (File("d/x", 3, False, (A,)), File("y", CHUNK + 1, True, (B, C)), File("z", 0, False, ())),
    (ManifestLink("d/l", "x"),),
    ("empty",),
)


def test_a_manifest_is_what_it_was_when_it_has_travelled() -> None:
    assert unpack(SMALL.packed()) == SMALL
    assert Chunks(SMALL).lengths == [3, CHUNK, 1]
    assert Chunks(SMALL).positions == [[(0, 0)], [(1, 0)], [(1, CHUNK)]]


def change(deed: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads(SMALL.text())
    deed(document)
    return json.dumps(document).encode()


LIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "an absolute path": lambda one: one["files"][0].update(path="/etc/passwd"),
    "a path upwards": lambda one: one["files"][0].update(path="../x"),
    "a path upwards in the middle": lambda one: one["files"][0].update(path="a/../../x"),
    "an empty path": lambda one: one["files"][0].update(path=""),
    "a NUL": lambda one: one["files"][0].update(path="a\0b"),
    "a surrogate that is no byte": lambda one: one["files"][0].update(path="\ud800"),
    "a long name": lambda one: one["files"][0].update(path="x" * 256),
    "a path that is no text": lambda one: one["files"][0].update(path=7),
    "the same path twice": lambda one: one["files"][0].update(path="y"),
    "a file below a file": lambda one: one["files"][0].update(path="y/x"),
    "a file below a link": lambda one: one["files"][0].update(path="d/l/x"),
    "a link outside": lambda one: one.update(links=[["l", "../x"]]),
    "an absolute link": lambda one: one.update(links=[["l", "/etc"]]),
    "a link through a link": lambda one: one.update(links=[["l", "d"], ["m", "l/x"]]),
    "too few chunks": lambda one: one["files"][1].update(chunks=[B]),
    "chunks of an empty file": lambda one: one["files"][2].update(chunks=[B]),
    "a chunk that is no digest": lambda one: one["files"][0].update(chunks=["../" + "a" * 61]),
    "a negative size": lambda one: one["files"][0].update(size=-1),
    "a huge size": lambda one: one["files"][0].update(size=1 << 62),
    "a size that is no number": lambda one: one["files"][0].update(size="3"),
    "setuid": lambda one: one["files"][0].update(mode=0o4755),
    "another chunk size": lambda one: one.update(chunk=7),
    "no files": lambda one: one.pop("files"),
    "files that are no list": lambda one: one.update(files=7),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies_is_refused(lie: str) -> None:
    with pytest.raises(ValueError, match=r"manifest|link"):
        parse(change(LIES[lie]))


def test_a_chunk_of_two_lengths_is_refused() -> None:
    manifest = parse(change(lambda one: one["files"][0].update(chunks=[B])))
    with pytest.raises(ValueError, match="has two lengths"):
        Chunks(manifest)


@pytest.mark.parametrize("packed", [b"", b"x", zlib.compress(b"{"), zlib.compress(b"[" * 100_000)])
def test_what_is_no_manifest_is_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="manifest"):
        unpack(packed)


def test_a_manifest_that_unpacks_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.deploy.features.data.wire.manifest.MOST_TEXT", 1000)
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        unpack(zlib.compress(b" " * 2000))


def test_a_set_of_numbers_travels_as_bits() -> None:
    assert numbers(bitmap([0, 9, 4], 10), 10) == {0, 4, 9}
    for bits in ("00", "000000", "ffff", "0"):
        with pytest.raises(ValueError, match=r"bitmap|hex"):
            numbers(bits, 10)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".hidden", "-rf", "a b", "x" * 101, "ä"])
def test_a_name_that_could_be_no_folder_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a data set"):
        require_name(name)


# -- a folder --


def test_the_same_content_is_the_same_manifest_whatever_the_times(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "b").write_text("b")
        (tmp_path / name / "a").write_text("a")
    os.utime(tmp_path / "two" / "a", (0, 0))
    (tmp_path / "two" / "a").chmod(0o640)
    assert scan(str(tmp_path / "one")) == scan(str(tmp_path / "two"))


def test_what_no_set_can_hold_is_refused_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/etc/passwd")
    (tmp_path / "up").symlink_to("../x")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tmp_path / "socket"))
    with pytest.raises(ValueError, match="'out' is a link") as error:
        scan(str(tmp_path))
    said = str(error.value).splitlines()
    assert [line.partition("'")[2].partition("'")[0] for line in said] == ["out", "pipe", "socket", "up"]


def test_one_file_is_a_set_too(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("text")
    manifest = scan(str(path))
    assert [file.path for file in manifest.files] == ["corpus.txt"]
    assert Reader(str(path), Chunks(manifest)).read(0) == b"text"


def test_a_file_that_grows_while_it_is_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    path.write_text("begin")
    fill = scanning._fill

    def grow(descriptor: int) -> bytes:
        content = fill(descriptor)
        with path.open("a") as file:
            file.write("more")
        return content

    monkeypatch.setattr(scanning, "_fill", grow)
    with pytest.raises(OSError, match="'log' changes while it is read"):
        scan(str(tmp_path))


def test_a_file_that_was_replaced_by_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    manifest = scan(str(tmp_path))
    (tmp_path / "a").unlink()
    (tmp_path / "a").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic links"):
        Reader(str(tmp_path), Chunks(manifest)).read(0)


# -- bundles --


def test_small_chunks_travel_together_and_no_bundle_is_larger_than_a_chunk() -> None:
    lengths = [CHUNK, 10, 20, CHUNK - 25, 5]
    everything = {*range(5)}
    made = list(bundles(lengths, {"a": everything, "b": everything}, {}))
    assert [one.chunks for one in made] == [(0,), (1, 2), (3, 4)]
    assert [one.size for one in made] == [CHUNK, 30, CHUNK - 20]


def test_chunks_that_other_hosts_lack_or_have_travel_apart() -> None:
    made = list(bundles([1] * 4, {"a": {0, 1, 2}, "b": {0, 2}}, {"b": {1}, "c": {2}}))
    assert made == [
        Bundle((0,), 1, ("a", "b"), ()),
        Bundle((1,), 1, ("a",), ("b",)),
        Bundle((2,), 1, ("a", "b"), ("c",)),
    ]


def test_after_an_interruption_the_same_bundle_is_next() -> None:
    lengths = [CHUNK // 3] * 10
    first = list(bundles(lengths, {"a": {*range(10)}}, {}))
    rest = list(bundles(lengths, {"a": {*range(3, 10)}}, {}))
    assert rest == first[1:]


def test_many_tiny_files_are_many_bundles() -> None:
    made = list(bundles([1] * 10_000, {"a": {*range(10_000)}}, {}))
    assert [len(one.chunks) for one in made] == [4096, 4096, 1808]


# -- what a user writes and reads --


@pytest.mark.parametrize(
    ("text", "name", "meant"),
    [
        ("head:/scratch/big", "", DataSource("big", there="/scratch/big")),
        ("head:~/big/", "x", DataSource("x", there="~/big/")),
    ],
)
def test_a_source_is_understood(text: str, name: str, meant: DataSource) -> None:
    assert source(text, name) == meant


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "which folder"),
        ("nowhere", "nowhere: no such file or folder here"),
        ("head:", "which folder of the head"),
        ("head:/a b", "give another: muster data push 'head:/a b' NAME"),
    ],
)
def test_a_source_that_cannot_be_is_explained(text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        source(text, "")
    assert said in str(error.value)


def test_the_report_of_a_push_is_a_line_a_host() -> None:
    hosts = {
        "node1": DataPushOutcome(3, 5_000_000, 2_000_000),
        "node2": DataPushOutcome(3, 5_000_000),
        "gpu-a": DataPushOutcome(error="no room"),
        "node3": DataPushOutcome(same_as="node1"),
    }
    assert DataPushResult("digits", hosts, 2_100_000).as_text(7.2).splitlines() == [
        "node1  3 files, 5.0 MB: 2.0 MB transferred",
        "node2  3 files, 5.0 MB: already up to date",
        "gpu-a  FAILED: no room",
        "node3  has the same home as node1",
        "",
        "digits: on 3 of 4 hosts after 7 s; 2.1 MB left this machine",
    ]


def test_a_set_that_a_host_lacks_is_seen_in_the_list() -> None:
    sets = {
        "node1": [DataSet("digits", 3, 5_000_000, A)],
        "node2": [],
        "node3": [DataSet("digits", error="gone")],
    }
    assert report.listed_as_text(sets).splitlines() == [
        "name    host   files  MB   version",
        "digits  node1  3      5.0  aaaaaaaa",
        "digits  node2  -      -    -         not here",
        "digits  node3  0      0.0  -         gone",
    ]


def test_damage_and_other_versions_are_named() -> None:
    told = {"node1": DataVerified(A, ()), "node2": DataVerified(B, ("'x': missing",))}
    assert report.verified_as_text("digits", told, {"node3": "there is no data set digits"}).splitlines() == [
        "node3: there is no data set digits",
        "node1: digits aaaaaaaa is as it was pushed",
        "node2: digits is damaged; a push repairs it",
        "    'x': missing",
        "the hosts have different versions of digits: push it again",
    ]


def test_ranks_find_the_data_sets_of_their_own_host() -> None:
    homes = {"node1": "/home/ml", "node2": "/home/a b"}
    cluster: Any = SimpleNamespace(facts={host: SimpleNamespace(home=home) for host, home in homes.items()})
    added = DataSets().prepare(cast("Any", None), cluster)
    found = {host: each.env["MUSTER_DATA"] for host, each in added.items()}
    assert found == {"node1": "/home/ml/.muster/data", "node2": "/home/a b/.muster/data"}
