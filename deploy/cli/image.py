"""`muster image build`, `check`, `sbom` and `push`: the node image, from its sources to every host."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..common.users import expanded
from ..connect.cluster import Cluster
from ..connect.opener import opener_with
from ..console.progress import Progress
from ..console.terminal import harmless_lines
from ..errors import UnfitError, UsageError
from ..hosts import hostfile
from ..image import build as building
from ..image import capabilities, report
from ..image.archive import Archive
from ..image.cache import CompilerCache
from ..image.engine import Engine
from ..image.follow import follow, is_followed
from ..image.push import Push, prepare, survey
from ..image.versions import load
from .command import Exit, command
from .options import require_image
from .shared import HELP, cache_folder, explained

BILL = ("cat", "/usr/share/muster/sbom.cdx.json")
PROVE = ("python3", "/usr/libexec/muster/prove", "--json")


@contextmanager
def compiler_cache(folder: str) -> Iterator[str]:
    """Serve the compilers' cache, if there is a folder for it; give the file that has its address."""
    if not folder:
        yield ""
        return
    with (
        CompilerCache(Path(expanded(folder)).resolve()) as cache,
        tempfile.NamedTemporaryFile("w") as secret,
    ):
        secret.write(cache.address)
        secret.flush()
        yield secret.name


@command(
    iterable=["source"],
    words=("target",),
    help={
        "target": "cpu (default), cpu-source, cuda, cuda-current, cuda-debian; -devel: with compilers",
        "source": "NAME=FOLDER: use the source archive in a local folder, not a download; may be repeated",
        "ca": "a file of CA certificates for downloads, for a site behind an inspecting proxy",
        "profile": "proof: leave out attention and the CPU's AVX kernels, which take longest (default: full)",
        "gpus": "compute capabilities, such as 9.0 or 8.0;9.0+PTX (default: those of docker/versions.json)",
        "cache": "a folder for what compilers make, so that a stopped build goes on (default: $MUSTER_CACHE)",
        "dry-run": "print the command, and build nothing",
    },
)
def build(  # noqa: PLR0917  # a flag for each parameter
    target: str = "cpu",
    source: Iterable[str] | None = None,
    ca: str = "",
    profile: str = "",
    gpus: str = "",
    cache: str = "",
    dry_run: bool = False,
) -> None:
    """Build a target of docker/docker-bake.json, after a check that its versions go together."""
    folder = "" if dry_run else cache or os.environ.get("MUSTER_CACHE", "")
    with (
        explained("interrupted; the next build goes on from what is compiled"),
        compiler_cache(folder) as address,
    ):
        sources = list(source or ())
        track = building.find(target, list(load().values()))
        recipe = building.Recipe(profile, gpus, address)
        bases = building.base_commands(target, track, ca)
        wanted = building.command(target, sources, ca, recipe)
        durations = building.Durations(cache_folder() / "builds.json")
        sys.stdout.write(f"{target}, track {track.name}: {durations.estimate(target)}\n")
        for name in building.without_sum(target, track):
            sys.stdout.write(
                f"{name} {track.version(name)}: its SHA-256 is not pinned; the build will stop there,"
                " show what it found, and say where to write it\n"
            )
        sys.stdout.flush()
        if dry_run:
            sys.stdout.writelines(" ".join(words) + "\n" for words in [*bases, wanted])
            return
        began = time.monotonic()
        no_base = any(subprocess.run(words, check=False).returncode for words in bases)
        if no_base or not _built(target, wanted):
            raise Exit(
                f"the build of {target} failed; the next one goes on from what is compiled already"
                + ("" if address else ", as long as the engine keeps its cache mounts (docs/image.md)"),
                1,
            )
        durations.note(target, time.monotonic() - began)


def _built(target: str, words: Sequence[str]) -> bool:
    """Build a target and show how far it is; whether that succeeded."""
    asked = subprocess.run(["docker", "buildx", "version"], capture_output=True, text=True, check=False)
    if not is_followed(asked.stdout):
        return subprocess.run(words, check=False).returncode == 0
    log = cache_folder() / "builds" / f"{target}.log"
    sys.stdout.write(f"its output: {log}\n")
    with Progress(sys.stdout, target, unit="steps", least=1) as progress:
        why = follow(words, log, progress.show)
    sys.stderr.write(harmless_lines(f"{why}\n") if why else "")
    return not why


@command(
    words=("image",),
    help={"image": "the image (default: muster:cpu)", "json": "for programs"},
)
def check(image: str = "muster:cpu", json: bool = False) -> None:
    """Run the image's own proof: versions, backends, one libmpi, mpirun and torchrun with two ranks."""
    with explained():
        require_image(image)
        engine = Engine()
        inspected = engine.image(image)
        _, output = engine.run(inspected, PROVE)
        proof = capabilities.parse(output, image)
        text = output if json else capabilities.as_text(image, inspected.size, inspected.labels, proof)
        sys.stdout.write(text)
        if proof.broken:
            raise Exit(code=1)


@command(words=("image",), help={"image": "the image (default: muster:cpu)"})
def sbom(image: str = "muster:cpu") -> None:
    """Print the image's bill of materials: every package with its version, as CycloneDX JSON."""
    with explained():
        require_image(image)
        engine = Engine()
        status, output = engine.run(engine.image(image), BILL)
        if status:
            raise UsageError(f"{image} has no bill of materials; build it anew with: muster image build")
        sys.stdout.write(output)


@command(
    words=("image",),
    help={
        **HELP,
        "image": "the image (default: muster:cpu)",
        "ssh-config": "how to reach the hosts themselves, not their node containers (default: ~/.ssh/config)",
    },
)
def push(  # noqa: PLR0917  # a flag for each parameter
    hosts: str = "hosts.txt",
    image: str = "muster:cpu",
    include: str = "",
    exclude: str = "",
    ssh_config: str = "",
    python: str = "",
) -> None:
    """Copy an image to the engine of every host, without a registry. Only missing layers are sent."""
    with explained("interrupted; partial data is kept: run the command again to resume"):
        chosen = hostfile.select(hostfile.load(Path(hosts)), include, exclude)
        if ssh_config and not Path(ssh_config).is_file():
            raise UsageError(f"--ssh-config: no file {ssh_config}")
        require_image(image)
        engine = Engine()
        inspected, archive, began = engine.image(image), Archive(cache_folder() / "images"), time.monotonic()
        open_pipe = opener_with(Path(ssh_config) if ssh_config else None, python)
        with archive.used(), Cluster(chosen, open_pipe) as cluster:
            lacking = survey(cluster, inspected)
            with Progress(sys.stdout, f"compressing {image}") as progress:
                configuration = prepare(engine, inspected, archive, lacking, progress.show)
            with Progress(sys.stdout, image) as progress:
                pushed = Push(cluster, inspected, archive, configuration, progress.show).carry(lacking)
        archive.sweep([inspected.id, *inspected.layers])
        sys.stdout.write(report.as_text(inspected, pushed, time.monotonic() - began))
        if pushed.failed:
            raise Exit(code=UnfitError.exit_status)
