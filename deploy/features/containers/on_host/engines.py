"""The container engines of this host, by their commands: which one is used, its images, its containers.

All three are used alike, by their command lines: docker's client also reaches an engine on another socket
(DOCKER_HOST, contexts), and podman needs no service.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from ....core.wire.files import digest
from ....core.wire.frames import Frame
from ....core.wire.store import every_lock_held

ANSWER_SECONDS, SURVEY_SECONDS = 60.0, 120.0
ABSENT = re.compile(r"(?i)no such (image|object)|image not known|not found")
CDI = ("/etc/cdi/*", "/var/run/cdi/*")
TOOLKIT = ("nvidia-container-runtime-hook", "nvidia-container-toolkit", "nvidia-container-cli")
DEVICES = ("/dev/infiniband", "/dev/kfd", "/dev/dri")
# Any Python of the image; sh reports its absence.
PYTHON = (
    'for name in python3 python; do if command -v "$name" >/dev/null 2>&1; then exec "$name" -I -; fi; done; '
    'echo "there is no python3 or python on its PATH ($PATH)" >&2; exit 41'
)


class ContainerEngine(NamedTuple):
    """An engine of this host: docker, podman or apptainer, and its command."""

    name: str
    program: str

    def run(self, *arguments: str, stdin: str = "", seconds: float | None = ANSWER_SECONDS) -> str:
        """The output of its command; OSError with the last line of its error."""
        try:
            done = subprocess.run(
                [self.program, *arguments],
                input=stdin.encode(),
                capture_output=True,
                timeout=seconds,
                check=False,
                cwd="/",
            )
        except subprocess.TimeoutExpired:
            raise OSError(f"{self.name} {arguments[0]}: no answer within {seconds:.0f} s") from None
        if done.returncode:
            text = (done.stderr or done.stdout).decode(errors="replace").strip()
            raise OSError(f"{self.name} {arguments[0]}: {last_line(text) or f'status {done.returncode}'}")
        return done.stdout.decode(errors="replace")

    def image(self, reference: str) -> Frame | None:
        """The id of an image and its digests in registries; None if the engine lacks it."""
        if self.name == "apptainer":
            return {"id": digest(reference), "digests": []} if os.path.isfile(reference) else None
        form = "{{.Id}} {{range .RepoDigests}}{{.}} {{end}}"
        try:
            fields = self.run("image", "inspect", "--format", form, reference).split()
        except OSError as error:
            if ABSENT.search(str(error)):
                return None
            raise
        return {
            "id": fields[0].rpartition(":")[2],
            "digests": sorted(
                {field.rpartition("sha256:")[2] for field in fields[1:] if "@sha256:" in field}
            ),
        }

    def pull(self, reference: str) -> None:
        """Fetch an image from its registry, without a time limit."""
        self.run("pull", "--quiet", reference, seconds=None)

    def nature(self) -> dict[str, bool]:
        """Whether it runs as the user, and whether it maps the user ids of containers."""
        if self.name == "docker":
            options = self.run("info", "--format", "{{json .SecurityOptions}}")
            return {"rootless": "name=rootless" in options, "remapped": "name=userns" in options}
        return {"rootless": os.getuid() != 0, "remapped": False}

    def raises_limits(self, image: str) -> bool:
        """Whether it may lift the limits of a container: a daemon in a container may have limits itself."""
        if self.name != "docker":  # podman has limits of its own configuration
            return False
        own = ("--rm", "--network", "none", "--entrypoint", "/bin/sh", "--user", "0:0")
        try:
            self.run("run", *own, "--ulimit", "memlock=-1:-1", image, "-c", ":", seconds=SURVEY_SECONDS)
        except OSError as error:
            if "rlimit" not in str(error):
                raise
            return False
        return True

    def survey(self, image: str, program: str) -> Frame:
        """The contents of an image: the last line of a program that runs in it, without a network."""
        if self.name == "apptainer":
            arguments = ["exec", "--cleanenv", "--no-home", "--pwd", "/", image, "/bin/sh", "-c", PYTHON]
        else:
            own = ("--rm", "--interactive", "--network", "none", "--entrypoint", "/bin/sh", "--user", "0:0")
            arguments = ["run", *own, image, "-c", PYTHON]
        lines = self.run(*arguments, stdin=program, seconds=SURVEY_SECONDS).splitlines()
        answers = [line for line in lines if line.startswith("muster {")]
        if not answers:
            raise OSError(f"its Python printed no description of the image: {last_line(chr(10).join(lines))}")
        survey: Frame = json.loads(answers[-1].partition(" ")[2])
        return survey

    def sweep(self, home: str) -> None:
        """Remove containers of jobs that no agent holds.

        A container ends with its agent, unless it was frozen meanwhile.
        """
        if self.name == "apptainer":  # its containers are processes below the agent
            return
        form = (
            '{{.ID}} {{.Label "muster.folder"}}'
            if self.name == "docker"
            else '{{.ID}} {{index .Labels "muster.folder"}}'
        )
        listed = self.run("ps", "--all", "--filter", f"label=muster.home={home}", "--format", form)
        for line in listed.splitlines():
            identity, _, folder = line.partition(" ")
            with contextlib.suppress(OSError), every_lock_held(Path(folder)):
                self.run("rm", "--force", identity)


def choose(wanted: str, reference: str) -> tuple[ContainerEngine, Frame | None]:
    """The wanted engine, or the first that answers, and the image if the engine has it.

    OSError if no engine answers.
    """
    is_file = reference.startswith("/")
    names = [wanted] if wanted else (["apptainer"] if is_file else ["docker", "podman"])
    errors = []
    for engine in filter(None, map(engine_called, names)):
        try:
            return engine, engine.image(reference)
        except OSError as error:
            errors.append(str(error))
    if errors:
        raise OSError("; ".join(errors))
    lack = f"no {' or '.join(names)} on PATH"
    if not wanted and not is_file and engine_called("apptainer"):
        raise OSError(f"{lack}, only apptainer, which starts a file: --image /path/of/image.sif")
    raise OSError(f"{lack}; install one of them on the host")


def engine_called(name: str) -> ContainerEngine | None:
    """The engine with this name. The command `docker` of podman-docker is podman."""
    names = ["apptainer", "singularity"] if name == "apptainer" else [name]
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        return None
    return ContainerEngine("podman" if name == "docker" and _is_podman(program) else name, program)


def gpus_by() -> str:
    """The way to give a container NVIDIA's GPUs: the container toolkit, a specification for CDI, or none."""
    if any(shutil.which(name) for name in TOOLKIT):
        return "toolkit"
    for path in (path for pattern in CDI for path in glob.glob(pattern)):
        with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            if "nvidia.com/gpu" in file.read(1 << 20):
                return "cdi"
    return ""


def devices() -> list[str]:
    """The devices of this host that ranks need."""
    return [path for path in DEVICES if os.path.exists(path)]


def _is_podman(program: str) -> bool:
    if os.path.basename(os.path.realpath(program)) == "podman":
        return True
    with contextlib.suppress(OSError), open(program, "rb") as file:  # podman-docker's is a script
        start = file.read(1 << 10)
        return start.startswith(b"#!") and b"podman" in start
    return False


def last_line(text: str) -> str:
    """The last line that is not empty and not one of docker's hints for help or lines of its log.

    When a container does not start, docker may log "error waiting for container" after the engine's error.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    hints = re.compile(r"(?i)^(see ['\"]|run ['\"]?\w+ .*--help)")
    kept = [line for line in lines if not hints.match(line)]
    errors = [line for line in kept if not line.startswith('time="')]
    return (errors or kept or [""])[-1]
