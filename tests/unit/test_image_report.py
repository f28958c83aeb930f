"""What `muster image.check` shows, and what `muster image.build` will run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from muster.deploy.cli.command import Exit
from muster.deploy.core.errors import UsageError
from muster.deploy.features.image import command as capabilities
from muster.deploy.features.image import image_versions as versions
from muster.deploy.features.image.command import (
    ImageBuild,
    ImageCheck,
    base_commands,
    find_track,
    without_digest,
    without_sum,
)
from muster.deploy.features.image.engine import Image

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
def test_an_image_without_a_proof_is_refused(
    monkeypatch: pytest.MonkeyPatch, status: int, output: str
) -> None:
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


def test_sums_that_are_missing_are_said_before_the_build() -> None:
    track = find_track("cuda", TRACKS)
    assert without_sum(track) == []
    new = replace(track.components["pytorch"], version="2.16.0", sha256=None)
    assert without_sum(replace(track, components={**track.components, "pytorch": new})) == ["pytorch"]


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
