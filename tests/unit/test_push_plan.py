"""An image taken apart, and the tree of hosts that its layers go through."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.deploy.core.content.transfer_state import ActiveTransfer, Receiver, Transfer, ancestors
from muster.deploy.core.errors import MusterError
from muster.deploy.features.image.archive import Archive
from muster.deploy.features.image.engine import Image
from muster.deploy.features.image.image_push import ImagePushOutcome, ImagePushResult
from tests.damage import DAMAGE

LAYERS = (b"low" * 50_000, b"high" * 40_000)
DIFF_IDS = tuple("sha256:" + hashlib.sha256(layer).hexdigest() for layer in LAYERS)
CONFIGURATION = json.dumps({"rootfs": {"diff_ids": DIFF_IDS}}).encode()
IMAGE = Image("muster:x", "sha256:" + "ab" * 32, "2026-11-20T00:00:00Z", DIFF_IDS, 310_000, {})


def saved(layout: str, configuration: bytes = CONFIGURATION) -> Iterator[bytes]:
    """What `docker save` writes: as older engines do, as newer ones, and as those with containerd's store."""
    stream = io.BytesIO()
    places = [f"{diff_id[7:]}/layer.tar" for diff_id in DIFF_IDS]
    if layout != "old":
        places = [f"blobs/sha256/{diff_id[7:]}" for diff_id in DIFF_IDS]
    contents = [gzip.compress(layer) if layout == "containerd" else layer for layer in LAYERS]
    manifest = [{"Config": "blobs/config", "RepoTags": ["muster:x"], "Layers": places}]
    members = [*zip(places, contents, strict=True), ("blobs/config", configuration)]
    members += [("manifest.json", json.dumps(manifest).encode()), ("repositories", b"{}")]
    with tarfile.open(fileobj=stream, mode="w") as files:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            files.addfile(entry, io.BytesIO(content))
    text = stream.getvalue()
    return (text[start : start + 7001] for start in range(0, len(text), 7001))


@pytest.mark.parametrize("layout", ["old", "new", "containerd"])
def test_layers_are_known_by_their_content_whatever_they_are_called(tmp_path: Path, layout: str) -> None:
    archive = Archive(tmp_path / "images")
    assert archive.take(saved(layout), IMAGE.id, DIFF_IDS) == CONFIGURATION
    for diff_id, content in zip(DIFF_IDS, LAYERS, strict=True):
        layer = archive.layer(diff_id)
        assert layer
        packed = archive.path(layer).read_bytes()
        assert gzip.decompress(packed) == content
        assert (layer.digest, layer.size) == (hashlib.sha256(packed).hexdigest(), len(packed))
    assert archive.configuration(IMAGE.id) == CONFIGURATION


def test_a_layer_is_compressed_to_the_same_bytes_each_time(tmp_path: Path) -> None:
    first, second = Archive(tmp_path / "a"), Archive(tmp_path / "b")
    for archive in (first, second):
        archive.take(saved("old"), IMAGE.id, DIFF_IDS[1:])
    assert first.layer(DIFF_IDS[1]) == second.layer(DIFF_IDS[1])
    assert first.layer(DIFF_IDS[0]) is None


def test_a_compressed_layer_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "images")
    archive.take(saved("old"), IMAGE.id, DIFF_IDS)
    layer = archive.layer(DIFF_IDS[0])
    assert layer
    archive.path(layer).write_bytes(b"cut")
    assert archive.layer(DIFF_IDS[0]) is None


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_was_damaged_since_the_last_push_is_made_again(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "images"
    Archive(folder).take(saved("old"), IMAGE.id, DIFF_IDS)
    layer = Archive(folder).layer(DIFF_IDS[0])
    assert layer
    DAMAGE[kind](Archive(folder).path(layer))
    assert Archive(folder).layer(DIFF_IDS[0]) is None
    DAMAGE[kind](folder / f"{DIFF_IDS[1].removeprefix('sha256:')}.json")
    assert Archive(folder).layer(DIFF_IDS[1]) is None
    DAMAGE[kind](folder / f"{IMAGE.id.removeprefix('sha256:')}.config")
    assert Archive(folder).configuration(IMAGE.id) is None
    again = Archive(folder)
    assert again.take(saved("old"), IMAGE.id, DIFF_IDS) == CONFIGURATION
    assert again.layer(DIFF_IDS[0]) == layer


def test_a_layer_that_the_engine_leaves_out_is_named(tmp_path: Path) -> None:
    with pytest.raises(MusterError, match="did not save the layer sha256:00"):
        Archive(tmp_path / "images").take(saved("old"), IMAGE.id, ["sha256:" + "00" * 32])


@pytest.mark.parametrize("layout", ["old", "new", "containerd"])
def test_a_configuration_may_be_long(tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive(tmp_path / "images")
    long = json.dumps({"config": {"Labels": {"sbom": "x" * (1 << 17)}}}).encode()
    assert archive.take(saved(layout, long), IMAGE.id, DIFF_IDS) == long
    assert all(archive.layer(diff_id) for diff_id in DIFF_IDS)
    monkeypatch.setattr("muster.deploy.features.image.archive.MOST_JSON", 1 << 17)
    with pytest.raises(MusterError, match=r"saved no configuration of the image \(blobs/config\), or one of"):
        archive.take(saved(layout, long), IMAGE.id, DIFF_IDS)


def test_layers_of_other_images_are_swept(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "images")
    archive.take(saved("old"), IMAGE.id, DIFF_IDS)
    archive.sweep([IMAGE.id, DIFF_IDS[1]])
    assert archive.layer(DIFF_IDS[0]) is None
    assert archive.layer(DIFF_IDS[1])


def test_the_layers_of_another_push_that_is_under_way_stay(tmp_path: Path) -> None:
    archive, other = Archive(tmp_path / "images"), Archive(tmp_path / "images")
    archive.take(saved("old"), IMAGE.id, DIFF_IDS)
    with archive.used():
        other.sweep([])
        assert archive.layer(DIFF_IDS[0])
    other.sweep([])
    assert archive.layer(DIFF_IDS[0]) is None


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_one_host_is_fed_from_here_and_none_gives_to_more_than_two(count: int) -> None:
    hosts = [f"node{number}" for number in range(count)]
    chains = ancestors(hosts)
    assert set(chains) == set(hosts[1:])
    parents = [chain[0] for chain in chains.values()]
    assert all(parents.count(host) <= 2 for host in hosts)
    assert all(chain[-1] == "node0" for chain in chains.values())
    assert max((len(chain) for chain in chains.values()), default=0) <= count.bit_length()


def test_a_host_with_most_of_a_file_comes_first() -> None:
    receivers = {host: Receiver(have) for host, have in {"a": 0, "b": 7, "c": 0, "d": 9}.items()}
    transfer = Transfer("ab" * 32, 9, tuple(receivers), io.BytesIO)
    assert ActiveTransfer(transfer, [], receivers).in_order() == ["d", "b", "a", "c"]


def test_the_report_is_one_line_a_host() -> None:
    hosts = {
        "node1": ImagePushOutcome(had_it=True),
        "gpu-node2": ImagePushOutcome(layers=1, size=3_100_000),
        "node3": ImagePushOutcome(layers=5, size=260_000_000, error="the SSH connection to it is gone"),
    }
    assert ImagePushResult("muster:x abababababab", hosts, 263_000_000).as_text(12.4).splitlines() == [
        "node1      has it already",
        "gpu-node2  loaded; 1 layer transferred, 3.1 MB",
        "node3      FAILED: the SSH connection to it is gone",
        "",
        "muster:x abababababab: on 2 of 3 hosts after 12 s; 263.0 MB left this machine",
    ]
    alone = ImagePushResult("muster:x", {"node1": ImagePushOutcome(had_it=True)}).as_text(1.0)
    assert "on 1 of 1 host after 1 s" in alone
