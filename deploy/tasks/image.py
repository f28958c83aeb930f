"""`fab image.build`, `image.check` and `image.push`: the node image, from its sources to every host."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from invoke import Collection, Context, Exit, task

from deploy.image import build as building
from deploy.image import capabilities
from deploy.image.engine import Engine
from deploy.image.versions import load
from deploy.tasks.shared import explained

PROVE = ("python3", "/usr/libexec/muster/prove", "--json")


def cache_folder() -> Path:
    """Where this machine keeps what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster"


@task(
    iterable=["source"],
    positional=[],
    auto_shortflags=False,
    help={
        "target": "cpu (default), cpu-source, cuda, cuda-current; with -devel: the same with compilers",
        "source": "NAME=FOLDER: the source archive in a folder here instead of a download; may be repeated",
        "ca": "a file of CA certificates for downloads, for a site behind an inspecting proxy",
        "dry-run": "print the command, and build nothing",
    },
)
def build(
    context: Context,
    target: str = "cpu",
    source: Iterable[str] | None = None,
    ca: str = "",
    dry_run: bool = False,
) -> None:
    """Build a target of docker/docker-bake.json, after a look at whether its versions go together."""
    with explained(context):
        sources = list(source or ())
        track = building.find(target, list(load().values()))
        words = building.command(target, sources, ca)
        durations = building.Durations(cache_folder() / "builds.json")
        sys.stdout.write(f"{target}, track {track.name}: {durations.estimate(target)}\n")
        for name in building.without_sum(target, track, sources):
            sys.stdout.write(
                f"{name} {track.version(name)}: no confirmed SHA-256; its download will stop and say so\n"
            )
        sys.stdout.flush()
        if dry_run or context.config.run.dry:
            sys.stdout.write(" ".join(words) + "\n")
            return
        began = time.monotonic()
        status = subprocess.run(words, check=False).returncode
        if status:
            raise Exit(
                f"the build of {target} failed; what is compiled already is kept, so it goes on from there", 1
            )
        durations.note(target, time.monotonic() - began)


@task(
    positional=[],
    auto_shortflags=False,
    help={"image": "the image (default: muster:cpu)", "json": "for programs"},
)
def check(context: Context, image: str = "muster:cpu", json: bool = False) -> None:
    """Run the image's own proof: versions, backends, one libmpi, mpirun and torchrun with two ranks."""
    with explained(context):
        engine = Engine()
        found = engine.image(image)
        _, said = engine.run(found, PROVE)
        proof = capabilities.parse(said, image)
        text = said if json else capabilities.as_text(image, found.size, found.labels, proof)
        sys.stdout.write(text)
        if proof.broken:
            raise Exit(code=1)


commands = Collection("image", build, check)
