"""`muster image build`, `check` and `push`: the node image, from its sources to every host."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...cli.child_program import run_program
from ...cli.command import Command, Exit
from ...cli.shared import JSON, HostOptions, cache_folder
from ...core.connect.cluster import Cluster
from ...core.connect.opener import access_with
from ...core.errors import UnfitError, UsageError
from ...core.hosts import hostfile
from ...core.plan.flags import flag
from ...core.text.progress import MB, Progress
from ...core.text.terminal import harmless_lines
from ...core.waits import waiting
from .engine import LocalEngine
from .image_push import ImageTransfer, prepare, survey
from .image_versions import FOLDER, Track, load, targets


def find_track(target: str, tracks: Sequence[Track]) -> Track:
    """The track of a target. `UsageError` for an unknown target."""
    named = targets(tracks)
    if (wanted := target.removesuffix("-devel")) not in named:
        raise UsageError(f"--target must be one of {', '.join(named)}, got '{target}'")
    _, track = named[wanted]
    return track


def base_commands(track: Track, ca: str = "") -> list[list[str]]:
    """The command lines that build the base images of a track, if no registry has them; often none."""
    if not track.base:
        return []
    arguments = ["docker", "build", "--file", str(FOLDER.parent / track.base)]
    arguments += ["--secret", f"id=ca,src={ca}"] if ca else []
    stages = {"devel": track.devel, "runtime": track.runtime}
    return [[*arguments, "--target", stage, "--tag", name, str(FOLDER)] for stage, name in stages.items()]


def without_digest(track: Track) -> list[str]:
    """The base images of a track that a registry may replace under the same name."""
    names = () if track.base else dict.fromkeys((track.devel, track.runtime))
    return [name for name in names if "@sha256:" not in name]


DEFAULT, IMAGE = "muster:cpu", "the image (default: muster:cpu)"
# In PyTorch's form.
_CAPABILITIES = re.compile(r"\d+\.\d+[a-z]?(\+PTX)?(;\d+\.\d+[a-z]?(\+PTX)?)*")
PROVE = ("python3", "/usr/libexec/muster/prove")
KEPT, BROKEN = 0, 1  # its exit statuses


@dataclass(frozen=True)
class ImageBuild(Command):
    """Build a target of docker/docker-bake.json."""

    interrupted = "interrupted; the next build continues from what is compiled"

    target: str = flag(
        "cpu", "cpu (default), cpu-source, cuda, cuda-debian; -devel: with compilers", takes="positional"
    )
    source: str = flag("", "a folder with source archives; what it has is not downloaded", "FOLDER")
    ca: str = flag(
        "", "a file of CA certificates for downloads, for a site behind an inspecting proxy", "FILE"
    )
    proof: bool = flag(
        False, "leave out attention and the CPU's AVX kernels, which take longest, to try the recipe"
    )
    gpus: str = flag(
        "",
        "compute capabilities, such as 9.0 or 8.0;9.0+PTX (default: those of docker/versions.json)",
        "LIST",
    )
    dry_run: bool = flag(False, "print the command, and build nothing")

    @property
    def command(self) -> list[str]:
        """The command line of the build. `UsageError` for options that no build takes."""
        target, compiled = self.target, self.target.removesuffix("-devel") != "cpu"
        wrong = {
            f"--source: no folder {self.source}": self.source and not Path(self.source).is_dir(),
            "--source: the target cpu compiles nothing; it takes the distribution's packages": self.source
            and not compiled,
            f"--ca: no file {self.ca}": self.ca and not Path(self.ca).is_file(),
            f"--gpus must be compute capabilities, such as 9.0 or 8.0;9.0+PTX, got '{self.gpus}'": self.gpus
            and not _CAPABILITIES.fullmatch(self.gpus),
            f"--proof is for targets that are compiled, and {target} is not": self.proof and not compiled,
            f"--gpus is for targets with CUDA, and {target} has none": self.gpus
            and not target.startswith("cuda"),
        }
        if refused := next((text for text, is_wrong in wrong.items() if is_wrong), ""):
            raise UsageError(refused)
        settings = {
            "context": str(FOLDER.parent),
            "contexts.sources": self.source,
            "args.PROFILE": "proof" if self.proof else "",
            "args.TORCH_CUDA_ARCH_LIST": self.gpus,
            "secrets": f"id=ca,src={self.ca}" if self.ca else "",
        }
        sets = [f"{target}.{name}={value}" for name, value in settings.items() if value]
        bake = ["docker", "buildx", "bake", "--file", str(FOLDER / "docker-bake.json"), target]
        return [*bake, *(token for each in sets for token in ("--set", each))]

    def run(self) -> None:
        """Build it, after its base images."""
        target = self.target
        track = find_track(target, list(load().values()))
        bases, main = base_commands(track, self.ca), self.command
        sys.stdout.write(f"{target}, track {track.name}\n")
        for name in without_digest(track):
            sys.stdout.write(
                f"the base image {name} has no digest: a later build may take another (docs/image.md says how"
                " to pin it)\n"
            )
        sys.stdout.flush()
        if self.dry_run:
            sys.stdout.writelines(" ".join(argv) + "\n" for argv in [*bases, main])
            return
        if any(run_program(argv) for argv in [*bases, main]):
            raise Exit(
                f"the build of {target} failed; the next one continues from what is compiled already, "
                "as long as the engine keeps its cache mounts (docs/image.md)",
                1,
            )


def _name(text: str) -> str:
    if not re.fullmatch(r"\w[\w./:@+~-]*", text):
        raise UsageError(f"{text!r} is not an image name: write NAME:TAG or NAME@sha256:...")
    return text


@dataclass(frozen=True)
class ImageCheck(Command):
    """Run the image's own proof: versions, backends, mpirun and torchrun."""

    image: str = flag(DEFAULT, IMAGE, takes="positional", parse=_name)
    json: bool = flag(False, JSON)

    def run(self) -> None:
        """Run it in a container, and print the result."""
        engine = LocalEngine()
        inspected = engine.image(self.image)
        status, output = engine.run(inspected, [*PROVE, *(["--json"] if self.json else [])])
        if status not in {KEPT, BROKEN} or not output.strip():
            last = (output.strip().splitlines() or ["nothing"])[-1]
            raise UsageError(
                f"{self.image} has no proof of its versions, as images of Muster have; its output: {last}"
            )
        if not self.json:
            own = sorted(
                (name, text) for name, text in inspected.labels.items() if name.startswith("muster.")
            )
            versions = " ".join(f"{name.removeprefix('muster.')}={text}" for name, text in own if text)
            output = f"{self.image}  {inspected.size / 1e9:.2f} GB\n{versions}\n\n{output}"
        sys.stdout.write(harmless_lines(output))
        if status == BROKEN:
            raise Exit(code=1)


@dataclass(frozen=True)
class ImagePush(HostOptions):
    """Copy an image to the engine of every host, without a registry.

    Only missing layers are sent. The other hosts get the image if one fails, which is named (status 3).
    """

    interrupted = "interrupted; partial data is kept: run the command again to resume"

    image: str = flag(DEFAULT, IMAGE, takes="positional", parse=_name)
    ssh_config: str = flag(
        "", "how to reach the hosts themselves, not their node containers (default: ~/.ssh/config)", "FILE"
    )

    def run(self) -> None:
        """Find the layers that hosts lack, compress these, and send them."""
        chosen = hostfile.select(hostfile.load(self.hosts_file), self.include, self.exclude)
        config = Path(self.ssh_config) if self.ssh_config else None
        if config and not config.is_file():
            raise UsageError(f"--ssh-config: no file {self.ssh_config}")
        engine = LocalEngine()
        inspected, began = engine.image(self.image), time.monotonic()
        with contextlib.closing(Cluster(chosen, access_with(config, self.python).open)) as cluster:
            failed = cluster.connect()
            lacking = survey(cluster, inspected, failed)
            with Progress(f"compressing {self.image}", unit=MB) as progress:
                saved = prepare(engine, inspected, lacking, cache_folder(), progress.show)
            with Progress(self.image, unit=MB) as progress:
                transfer = ImageTransfer(cluster, inspected, saved, progress.show)
                with waiting("the engines of the hosts"):
                    pushed = transfer.push(lacking, failed)
        sys.stdout.write(pushed.as_text(time.monotonic() - began))
        if pushed.failed:
            raise Exit(code=UnfitError.exit_status)
