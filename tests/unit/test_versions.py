"""The versions of the image: what goes together, and that everything which names them says the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from muster.deploy.core.errors import UsageError
from muster.deploy.features.image import bake
from muster.deploy.features.image import image_versions as versions
from muster.deploy.features.image.image_versions import Component, Track, targets

ROOT = Path(__file__).parents[2]
TRACKS = versions.load()
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
GOOD = TRACKS["nvidia"]


# One source


def test_the_bake_file_is_written_from_the_versions() -> None:
    said = (ROOT / "docker" / "docker-bake.json").read_text()
    assert said == bake.bake(TRACKS.values()), (
        "write it again: python -m muster.deploy.features.image.bake >docker/docker-bake.json"
    )


def test_the_dockerfiles_defaults_are_those_of_the_cpu_track() -> None:
    defaults = dict(re.findall(r"^ARG (\w+)=(.+)$", DOCKERFILE.partition("\nFROM ")[0], re.MULTILINE))
    wanted = {name: one for name, one in bake.arguments("cpu", TRACKS["cpu"]).items() if one}
    assert {name: defaults.get(name) for name in wanted} == wanted


def test_the_dockerfile_has_every_argument_that_it_is_given() -> None:
    for flavour, track in targets(TRACKS.values()).values():
        for name in bake.arguments(flavour, track):
            assert re.search(rf"^ARG .*\b{name}\b", DOCKERFILE, re.MULTILINE), name


def test_the_dockerfile_has_the_stages_that_are_named() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE))
    for target in json.loads((ROOT / "docker" / "docker-bake.json").read_text())["target"].values():
        assert {target["target"], target["args"]["FLAVOR"]} <= stages


def table_of(tracks: Iterable[Track]) -> str:
    """The versions as the Markdown table of docs/image.md, a track a row."""
    names = ("pytorch", "torchvision", "openmpi", "ucx", "mpi4py")
    lines = [
        f"| track | targets | {' | '.join(names)} | CUDA | NCCL | GPUs | sums missing |",
        "|---" * 11 + "|",
    ]
    for track in tracks:
        missing = [name for name, part in track.components.items() if part.is_built and not part.sha256]
        buildable = targets([track])
        cells = [
            track.name,
            ", ".join(f"`{name}`" for name in buildable),
            *(track.components[name].version if name in track.components else "-" for name in names),
            track.cuda or "-",
            track.nccl or "-",
            " ".join(track.architectures) or "-",
            ", ".join(missing) or "-",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_table_of_the_documents_is_that_of_the_versions() -> None:
    assert table_of(TRACKS.values()) in (ROOT / "docs" / "image.md").read_text()


@pytest.mark.parametrize("name", TRACKS)
def test_every_sum_is_a_sum_with_its_origin_or_missing(name: str) -> None:
    raw = json.loads(versions.FILE.read_text())["tracks"][name]["components"]
    for component, one in TRACKS[name].components.items():
        if one.is_built and one.sha256:
            assert re.fullmatch("[0-9a-f]{64}", one.sha256), component
            assert raw[component]["sum"], component


def test_a_sum_that_nobody_has_confirmed_reaches_the_build_as_such() -> None:
    track = replace(GOOD, components={**GOOD.components, "pytorch": Component("2.15.0", "https://x")})
    assert bake.arguments("cuda", track)["PYTORCH_SHA256"] == "unverified"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"tracks": {"cpu": {}}}', '{"tracks": {"cpu": 3}}'])
def test_a_damaged_file_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=r"versions\.json: "):
        versions.parse(text)
