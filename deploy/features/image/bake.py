"""Writes docker/docker-bake.json, the targets of `docker buildx bake`, from the versions. Pure.

After a change of docker/versions.json, write it again:

    python -m muster.deploy.features.image.bake >docker/docker-bake.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from .image_versions import UNVERIFIED, Component, Track, load, targets


def bake(tracks: Iterable[Track]) -> str:
    """The bake file: each target, and its `-devel` target with compilers and headers."""
    entries: dict[str, Any] = {}
    for name, (flavour, track) in targets(tracks).items():
        entries[name] = _target(name, flavour, track, "node")
        if flavour != "cpu":
            entries[f"{name}-devel"] = _target(f"{name}-devel", flavour, track, "devel")
    file = {"group": {"default": {"targets": ["cpu"]}}, "target": entries}
    return json.dumps(file, indent=2) + "\n"


def arguments(flavour: str, track: Track) -> dict[str, str]:
    """The build arguments of a target, by their names in the Dockerfile."""
    arguments = {
        "FLAVOR": flavour,
        "TRACK": track.name,
        "DEVEL": track.devel,
        "RUNTIME": track.runtime,
        "PYTHON_VERSION": track.python,
        "CUDA_RELEASE": track.cuda or "",
        "NCCL_RELEASE": track.nccl or "",
        "CUDNN_RELEASE": track.cudnn or "",
        "TRITON_VERSION": track.triton or "",
        "TORCH_CUDA_ARCH_LIST": ";".join(track.architectures),
    }
    for name, component in track.components.items():
        arguments |= _component(name.upper(), component)
    return arguments


def _component(prefix: str, component: Component) -> dict[str, str]:
    if not component.is_built:
        return {f"{prefix}_VERSION": component.version}
    return {
        f"{prefix}_VERSION": component.version,
        f"{prefix}_SOURCE": component.source,
        f"{prefix}_SHA256": component.sha256 or UNVERIFIED,
    }


def _target(name: str, flavour: str, track: Track, stage: str) -> Mapping[str, Any]:
    return {
        "context": ".",
        "dockerfile": "docker/Dockerfile",
        "target": stage,
        "args": arguments(flavour, track),
        "tags": [f"muster:{name}"],
    }


if __name__ == "__main__":
    sys.stdout.write(bake(load().values()))
