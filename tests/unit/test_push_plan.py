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
from muster.deploy.features.image.archive import compressed
from muster.deploy.features.image.engine import Image
from muster.deploy.features.image.image_push import ImagePushOutcome, ImagePushResult

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
    image = compressed(saved(layout), DIFF_IDS, tmp_path / "images")
    assert image.configuration == CONFIGURATION
    for diff_id, content in zip(DIFF_IDS, LAYERS, strict=True):
        layer = image.layers[diff_id]
        packed = layer.path.read_bytes()
        assert gzip.decompress(packed) == content
        assert (layer.digest, layer.size) == (hashlib.sha256(packed).hexdigest(), len(packed))
    assert [*(tmp_path / "images").iterdir()] == []


def test_a_wanted_layer_is_compressed_to_the_same_bytes_each_time(tmp_path: Path) -> None:
    first, second = (compressed(saved("old"), DIFF_IDS[1:], tmp_path).layers for _ in range(2))
    assert first.keys() == {DIFF_IDS[1]}
    assert first[DIFF_IDS[1]].digest == second[DIFF_IDS[1]].digest


def test_a_layer_that_the_engine_leaves_out_is_named(tmp_path: Path) -> None:
    with pytest.raises(MusterError, match="did not save the layer sha256:00"):
        compressed(saved("old"), ["sha256:" + "00" * 32], tmp_path)


@pytest.mark.parametrize("layout", ["old", "new", "containerd"])
def test_a_configuration_may_be_long(tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    long = json.dumps({"config": {"Labels": {"sbom": "x" * (1 << 17)}}}).encode()
    image = compressed(saved(layout, long), DIFF_IDS, tmp_path)
    assert image.configuration == long
    assert image.layers.keys() == {*DIFF_IDS}
    monkeypatch.setattr("muster.deploy.features.image.archive.MOST_JSON", 1 << 17)
    with pytest.raises(MusterError, match=r"saved no configuration of the image \(blobs/config\), or one of"):
        compressed(saved(layout, long), DIFF_IDS, tmp_path)


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
