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

from muster.deploy.cli.command import Exit
from muster.deploy.core.content.transfer_state import ActiveTransfer, Receiver, Transfer, ancestors
from muster.deploy.core.errors import MusterError, UsageError
from muster.deploy.features.image import command as capabilities
from muster.deploy.features.image import image_versions as versions
from muster.deploy.features.image.command import (
    ImageBuild,
    ImageCheck,
    base_commands,
    find_track,
    without_digest,
)
from muster.deploy.features.image.engine import Image
from muster.deploy.features.image.image_push import ImagePushOutcome, ImagePushResult, compressed

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
    monkeypatch.setattr("muster.deploy.features.image.image_push.MOST_JSON", 1 << 17)
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


# -- what `muster image.check` shows, and what `muster image.build` will run --


TRACKS = list(versions.load().values())


class Engine:
    """An engine whose image prints a text, and ends with a status."""

    status, output = 0, "kept    pytorch 2.13.0: 2.13.0\n"

    def image(self, name: str) -> Image:
        return Image(name, "sha256:1", "", (), 9_870_000_000, {"muster.cuda": "13.0.2", "other": "x"})

    def run(self, image: Image, argv: list[str]) -> tuple[int, str]:
        return self.status, self.output


def test_a_check_prints_the_proof_of_the_image_below_its_size_and_versions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(capabilities, "LocalEngine", Engine)
    ImageCheck("muster:cuda").run()
    assert capsys.readouterr().out == "muster:cuda  9.87 GB\ncuda=13.0.2\n\nkept    pytorch 2.13.0: 2.13.0\n"
    monkeypatch.setattr(Engine, "status", 1)
    with pytest.raises(Exit) as broken:
        ImageCheck("muster:cuda").run()
    assert broken.value.code == 1


@pytest.mark.parametrize(("status", "output"), [(127, "exec: no such file"), (2, ""), (1, "\n")])
def test_a_lack_of_proof_is_refused(monkeypatch: pytest.MonkeyPatch, status: int, output: str) -> None:
    monkeypatch.setattr(capabilities, "LocalEngine", Engine)
    monkeypatch.setattr(Engine, "status", status)
    monkeypatch.setattr(Engine, "output", output)
    with pytest.raises(UsageError, match=f"x has no proof of its versions.*: {output.strip() or 'nothing'}"):
        ImageCheck("x").run()


@pytest.mark.parametrize(
    "target", ["cpu", "cpu-source", "cpu-source-devel", "cuda", "cuda-devel", "cuda-debian"]
)
def test_a_target_has_its_track(target: str) -> None:
    assert find_track(target, TRACKS).components


def test_an_unknown_target_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="cpu, cpu-source, cuda-debian, cuda, got 'gpu'"):
        find_track("gpu", TRACKS)


def test_a_folder_stands_in_for_a_download(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    words = ImageBuild("cuda", source=str(tmp_path), ca=str(ca)).command
    assert words[-4:] == [
        "--set",
        f"cuda.contexts.sources={tmp_path}",
        "--set",
        f"cuda.secrets=id=ca,src={ca}",
    ]


def test_a_base_that_no_registry_has_is_built_first(tmp_path: Path) -> None:
    track = find_track("cuda-debian", TRACKS)
    devel, runtime = base_commands(track, str(tmp_path / "ca.pem"))
    assert Path(devel[devel.index("--file") + 1]).is_file()
    assert devel[devel.index("--tag") + 1] == track.devel
    assert runtime[runtime.index("--tag") + 1] == track.runtime
    assert f"id=ca,src={tmp_path}/ca.pem" in devel
    assert base_commands(find_track("cuda", TRACKS)) == []
    assert base_commands(find_track("cpu-source", TRACKS)) == []


@pytest.mark.parametrize(
    ("target", "source", "reason"),
    [("cuda", "/nowhere", "no folder /nowhere"), ("cpu", "/", "the target cpu compiles nothing")],
)
def test_a_source_that_no_build_uses_is_refused(target: str, source: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"--source: {reason}"):
        _ = ImageBuild(target, source=source).command


def test_a_base_without_a_digest_is_named_before_the_build(capsys: pytest.CaptureFixture[str]) -> None:
    bases = {
        name: without_digest(find_track(name, TRACKS))
        for name in ("cpu", "cpu-source", "cuda", "cuda-debian")
    }
    tag = ["debian:trixie-slim"]
    assert bases == {"cpu": tag, "cpu-source": tag, "cuda": [], "cuda-debian": []}
    ImageBuild(dry_run=True).run()
    assert "the base image debian:trixie-slim has no digest: " in capsys.readouterr().out


def test_proof_and_gpus_are_set_for_the_target_alone() -> None:
    words = ImageBuild("cuda-debian", proof=True, gpus="9.0").command
    assert words[words.index("--set") + 2 :] == [
        "--set",
        "cuda-debian.args.PROFILE=proof",
        "--set",
        "cuda-debian.args.TORCH_CUDA_ARCH_LIST=9.0",
    ]


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (ImageBuild("cpu-devel", proof=True), "--proof is for targets that are compiled, and cpu-devel"),
        (ImageBuild("cuda-debian", gpus="hopper"), "--gpus must be compute capabilities"),
        (ImageBuild("cuda-debian", gpus="9.0 --help"), "--gpus must be compute capabilities"),
        (ImageBuild("cpu", gpus="9.0"), "cpu has none"),
    ],
)
def test_options_that_no_build_takes_are_refused(build: ImageBuild, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        _ = build.command
