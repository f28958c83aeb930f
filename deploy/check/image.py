"""Compares the versions found on a host with the track of its image in docker/versions.json."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from ..image.versions import Track, targets
from .finding import Finding
from .measurements import Examined


def name(measured: Examined) -> str | None:
    """The image of a host as it records itself: `cpu of track cpu`. None if it is not an image of Muster."""
    image = measured.health.image
    return f"{image['flavor']} of track {image.get('track', 'unknown')}" if "flavor" in image else None


# The finding that already names a host whose version of a component differs from the other hosts.
_APART = {
    "pytorch": "torch.version-differs",
    "openmpi": "mpi.version-differs",
    "mpi4py": "mpi4py.version-differs",
}


def images(
    examined: Mapping[str, Examined], tracks: Mapping[str, Track], reported: Collection[tuple[str, str]] = ()
) -> Iterator[Finding]:
    """Findings for versions that differ from the track of a host's image. Without tracks: no comparison.

    `reported`: host and id of the findings that exist already.
    """
    known = targets(tracks.values())
    for host, measured in examined.items():
        image = measured.health.image
        if "flavor" in image and tracks:
            target, track = _track(image, known)
            if track is None:
                text = f"its image is {name(measured)}, which docker/versions.json here does not have"
                yield Finding("image.unknown", host, "warning", text, _build(next(iter(known))))
            else:
                yield from _differences(host, measured, target, track, reported)


def _track(image: Mapping[str, str], known: Mapping[str, tuple[str, Track]]) -> tuple[str, Track | None]:
    """The target that builds such an image, and its track. Images of older builds record no track."""
    for target, (flavor, track) in known.items():
        if image["flavor"] == flavor and image.get("track", track.name) == track.name:
            return target, track
    return "", None


def _differences(
    host: str, measured: Examined, target: str, track: Track, reported: Collection[tuple[str, str]]
) -> Iterator[Finding]:
    facts, image = measured.facts, measured.health.image
    installed = {"pytorch": facts.torch, "openmpi": facts.mpi, "mpi4py": facts.mpi4py}
    for component, version in installed.items():
        wanted, have = track.version(component), (version or "").partition("+")[0]
        if have and wanted and have != wanted and (host, _APART[component]) not in reported:
            from_image = image.get(component) == have
            text = f"{component} {have}, where track {track.name} of docker/versions.json has {wanted}: " + (
                "its image was built from other versions"
                if from_image
                else "it was installed beside its image's"
            )
            remedy = _build(target) if from_image else "remove it, or have it in docker/versions.json"
            yield Finding("image.versions-differ", host, "warning", text, remedy)


def _build(target: str) -> str:
    return f"muster image build --target {target}, then muster image push --image muster:{target}"
