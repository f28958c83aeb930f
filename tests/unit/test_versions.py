"""The versions of the image: what goes together, and that everything which names them says the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from muster.deploy.core.errors import UsageError
from muster.deploy.features.image import bake, compatibility
from muster.deploy.features.image import image_versions as versions
from muster.deploy.features.image.image_versions import Component, Track, targets

ROOT = Path(__file__).parents[2]
TRACKS = versions.load()
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
GOOD = TRACKS["nvidia"]


def changed(track: Track, **values: str) -> Track:
    """The track with other versions of some components."""
    components = {name: replace(track.components[name], version=one) for name, one in values.items()}
    return replace(track, components={**track.components, **components})


NEW = changed(GOOD, pytorch="2.15.0", torchvision="0.29.2")


@pytest.mark.parametrize("name", TRACKS)
def test_every_track_works(name: str) -> None:
    assert compatibility.conflicts(TRACKS[name]) == ()


@pytest.mark.parametrize(
    ("track", "what", "words"),
    [
        (
            replace(GOOD, python="3.9"),
            "Python and PyTorch",
            "needs Python 3.10 or newer, below 3.15, not 3.9",
        ),
        (replace(NEW, python="3.10"), "Python and PyTorch", "needs Python 3.11 or newer"),
        (
            replace(NEW, python="3.16"),
            "Python and PyTorch",
            "below 3.16, not 3.16",
        ),
        (replace(TRACKS["cpu"], python="3.14"), "Python and PyTorch", "2.6.0 needs Python 3.9 or newer"),
        (
            replace(NEW, cuda="12.9.1", architectures=("9.0",)),
            "CUDA and PyTorch",
            "13.0 or newer",
        ),
        (changed(GOOD, pytorch="2.6.0", torchvision="0.21.0"), "CUDA and PyTorch", "11.8 or newer, below 13"),
        (changed(GOOD, pytorch="2.14.1"), "torchvision and PyTorch", "made for PyTorch 2.13.0 or newer"),
        (
            changed(GOOD, torchvision="0.29.2"),
            "torchvision and PyTorch",
            "PyTorch 2.14.0 or newer, not 2.13.0",
        ),
        (
            replace(GOOD, architectures=("7.0", "9.0")),
            "GPU architecture and CUDA",
            "7.0 needs CUDA 9.0 or newer",
        ),
        (
            replace(GOOD, cuda="12.6.3", architectures=("12.0+PTX",)),
            "GPU architecture and CUDA",
            "capability 12.0 needs CUDA 12.8 or newer, not 12.6.3",
        ),
        (
            replace(TRACKS["debian"], architectures=("10.3",)),
            "GPU architecture and CUDA",
            "capability 10.3 needs CUDA 12.9 or newer, not 12.4.1",
        ),
        (
            changed(TRACKS["debian"], pytorch="2.15.0", torchvision="0.29.2"),
            "CUDA and PyTorch",
            "CUDA 13.0 or newer, below 14, not 12.4.1",
        ),
        (replace(GOOD, architectures=("9.5",)), "GPU architecture", "9.5 is none of 5.0, 6.0"),
        (replace(GOOD, architectures=()), "GPU architecture", "nothing would run on any GPU"),
        (changed(GOOD, ucx="1.18.1"), "UCX and CUDA", "CUDA 13.0.2 needs UCX 1.20 or newer, not 1.18.1"),
        (replace(GOOD, nccl="2.26.2"), "NCCL and CUDA", "needs NCCL 2.27.7 or newer, not 2.26.2"),
        (replace(GOOD, nccl=None), "NCCL", "no way to train on several GPUs"),
        (changed(GOOD, openmpi="6.0.0"), "Open MPI", "drives Open MPI 4.1 and 5.0, not 6.0.0"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.istitle() else None,
)
def test_what_cannot_work_is_refused_with_the_reason(track: Track, what: str, words: str) -> None:
    (conflict,) = compatibility.conflicts(track)
    assert conflict.what == what
    assert words in conflict.reason


def test_every_conflict_is_named_at_once() -> None:
    wrong = changed(replace(GOOD, python="3.9", nccl="2.20"), openmpi="3.1.6")
    assert len(compatibility.conflicts(wrong)) == 3


@pytest.mark.parametrize(
    ("driver", "built", "runs"),
    [("13.0", "13.2", True), ("13.2", "13.0", True), ("12.9", "13.0", False), ("13.0", "12.6", True)],
)
def test_a_driver_runs_its_own_major_version_of_cuda_and_older(driver: str, built: str, runs: bool) -> None:
    assert compatibility.driver_runs(driver, built) is runs


def test_versions_are_compared_as_numbers() -> None:
    assert compatibility.number("2.10.0") > compatibility.number("2.9.1")
    assert compatibility.number("2.6.0+dfsg-7") == (2, 6, 0)


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
            *(track.version(name) or "-" for name in names),
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
