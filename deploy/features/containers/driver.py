"""Lets the ranks run in containers of an image (`--image`)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from ...core.connect.channel import Channel
from ...core.connect.cluster import Cluster
from ...core.connect.fanout import on_every
from ...core.connect.pipe import LostError
from ...core.connect.requests import Nothing, Request
from ...core.decode import AtMost, Like
from ...core.errors import HostError, MusterError, UnfitError
from ...core.hosts.bounds import AbsolutePath, Count, Number, Text
from ...core.hosts.host_facts import Facts, Interpreter, with_interpreter
from ...core.job.events import Emit, Stage, Waiting
from ...core.job.feature import Feature, Start
from ...core.plan.launch_plan import Contribution, LaunchPlan, RemoteFile, UnshownFile
from ...core.plan.spec import LaunchSpec
from ...core.text.terminal import harmless
from ...core.waits import with_hosts
from ...core.wire.paths import JobPaths, MusterPaths
from .options import ContainerOptions, EngineName, Mount

LEAST_PYTHON = (3, 9)
SHOWN = 12  # characters of an image's id


@dataclass(frozen=True)
class ImageContents(Interpreter):
    """The software in the image."""

    mpi_error: Text | None
    passwd: Annotated[str, AtMost(1 << 16)]
    """Its /etc/passwd."""


@dataclass(frozen=True)
class HostImage:
    """The image on a host, and how its engine starts a container of it."""

    engine: EngineName
    program: AbsolutePath
    """The engine's command."""
    rootless: bool
    """Whether the engine itself runs as the user: then the user is root, or the user, inside."""
    remapped: bool
    """Whether the engine gives containers other numbers of users, unless an option turns that off."""
    raises_limits: bool
    """Whether the engine may give a container more locked memory than the user has."""
    id: Annotated[str, Like(r"([0-9a-f]{64})?")]
    """The SHA-256 that names the image; empty where the host does not have it."""
    digests: Annotated[tuple[Annotated[str, Like(r"[0-9a-f]{64}")], ...], AtMost(64)]
    """The digests of the image in registries."""
    inside: ImageContents | None
    user: Annotated[str, Like(r"[^\s:]{1,64}")]
    gid: Count
    groups: Annotated[tuple[Count, ...], AtMost(1 << 10)]
    """The user's other groups."""
    open_files: Number
    """The most open files that the user may have; -1 for no limit."""
    gpus: Literal["", "toolkit", "cdi"]
    """How a container gets NVIDIA's GPUs here: by the container toolkit, by CDI, or not at all."""
    devices: Annotated[tuple[AbsolutePath, ...], AtMost(16)]
    """Devices of the host that ranks need: RDMA, and GPUs of AMD."""
    home: Annotated[str, Like(r"[0-9a-f]{32}")]
    """Equal on hosts that share a home folder: containers with it may be swept."""


CONTAINER = Request("container", HostImage)
CONTAINER_START = Request("container_start", Nothing)


def container_facts(facts: Facts, image: HostImage) -> Facts:
    """The facts for ranks in the image. An image without Open MPI gets the host's.

    The image's mpi4py, if any, has no library that fits to the host's Open MPI, so ranks start without it.
    """
    contents, own = image.inside, replace(facts, uid=_user(facts, image)[0])
    if contents is None:
        return own
    usable = contents if contents.mpirun else replace(contents, mpi4py=None)
    return with_interpreter(own, usable, contents.mpi_error)


def require_same(image: str, images: Mapping[str, HostImage]) -> None:
    """`UnfitError` for hosts whose image differs from that of the first host, or has too old a Python."""
    first, model = next(iter(images.items()))
    of_first = f"{model.id[:SHOWN]} on {first}"
    reasons = [
        (host, f"{image} is {held.id[:SHOWN]} here, but {of_first}; {_remedy(image, held)}")
        for host, held in images.items()
        if held.id != model.id and not {*held.digests} & {*model.digests}
    ]
    reasons += [
        (host, f"{image} has Python {contents.python}; ranks need 3.9 or newer in it")
        for host, held in images.items()
        if (contents := held.inside) and tuple(map(int, contents.python.split(".")[:2])) < LEAST_PYTHON
    ]
    if reasons:
        raise UnfitError(reasons)


def push_commands(image: str, engine: EngineName) -> str:
    """The commands that bring an image from here. `image.push` loads it through docker's API."""
    image = shlex.quote(image)
    if engine == "podman":
        return (
            f"docker save -o image.tar {image}; muster put image.tar; muster run -- podman load -i image.tar"
        )
    return "muster put" if engine == "apptainer" else f"muster image.push --image {image}"


def _remedy(image: str, held: HostImage) -> str:
    bring = push_commands(image, held.engine)
    if held.engine == "apptainer":
        return f"copy one file to all hosts: {bring}"
    return f"pull it on both hosts ({held.engine}), name it by its digest, or bring it from here: {bring}"


HOME = "home"
"""The home of ranks in containers, in ~/.muster: caches of programs, kept from one launch to the next."""
PRIVATE = "$MUSTER_AGENT"
"""The agent's private folder in the engine's argv: the agent puts in its own (on_host/container.py)."""


@dataclass(frozen=True)
class ContainerPlan:
    """The container of a host."""

    image: str
    """The image with its id, which is the same on every host."""
    argv: tuple[str, ...]
    """The engine's command; it runs as long as the container."""
    remove: tuple[str, ...]
    """The engine's command that ends the container by force; empty for apptainer."""
    launcher_inside: bool
    """Whether the launcher runs in it; else the host's mpirun starts each rank in it."""
    environment: tuple[tuple[str, str], ...]
    """Variables of everything in it, besides those of the image and of the ranks."""


def plan_container(spec: LaunchSpec, host: str, facts: Facts, image: HostImage) -> ContainerPlan:
    """The container of a host; `HostError` for GPUs that the engine cannot pass to it."""
    paths, muster = JobPaths.of(facts.home, spec.job), MusterPaths.of_home(facts.home)
    apptainer = image.engine == "apptainer"
    name = container_name(spec, host)
    name_of_image = spec.of(ContainerOptions).image
    reference = name_of_image if apptainer else image.id
    keeper = ("-IS", f"{paths.programs}/keeper.py")
    python = image.inside.executable if image.inside else "python3"
    options = _apptainer(spec, facts, image) if apptainer else _engine(spec, name, facts, image)
    command = (reference, python, *keeper) if apptainer else ("--entrypoint", python, reference, *keeper)
    return ContainerPlan(
        image=f"{name_of_image} ({image.engine}, {image.id[:SHOWN]})",
        argv=(image.program, *options, *command),
        remove=() if apptainer else (image.program, "rm", "--force", name),
        launcher_inside=spec.launcher != "mpirun" or bool(image.inside and image.inside.mpirun),
        environment=(("HOME", muster.of(HOME)), ("USER", image.user), ("LOGNAME", image.user)),
    )


def container_name(spec: LaunchSpec, host: str) -> str:
    """The name of a host's container: `muster-20261120-120000-abcd-0-node1`."""
    return re.sub(r"[^\w.-]", "-", f"muster-{spec.job}-{spec.attempt}-{host}")


def passwd(facts: Facts, image: HostImage) -> str | None:
    """The /etc/passwd of the container: the image's, with the user. None if the image has the user's number.

    mpirun, and Python's getpass, fail for a user without an entry.
    """
    uid, _ = _user(facts, image)
    users = image.inside.passwd if image.inside else ""
    if image.engine != "docker" or re.search(rf"(?m)^[^:\n]*:[^:\n]*:{uid}:", users):
        return None  # podman and apptainer write the entry themselves
    others = [line for line in users.splitlines() if line and not line.startswith(f"{image.user}:")]
    home = MusterPaths.of_home(facts.home).of(HOME)
    entry = f"{image.user}:x:{uid}:{image.gid}::{home}:/bin/sh"
    return "\n".join((*others, entry)) + "\n"


def _engine(spec: LaunchSpec, name: str, facts: Facts, image: HostImage) -> tuple[str, ...]:
    """The options of `docker run` and `podman run`, which differ only in users and limits."""
    paths = JobPaths.of(facts.home, spec.job)
    own = ("--name", name, "--label", f"muster.home={image.home}", "--label", f"muster.folder={paths.folder}")
    host = ("--network", "host", "--pid", "host", "--ipc", "host", "--security-opt", "label=disable")
    files = (f"{paths.programs}/passwd",) if passwd(facts, image) is not None else ()
    return (
        *("run", "--rm", "--no-healthcheck", *own, *host),
        *_users(facts, image),
        *_gpus(spec, facts, image),
        *(option for device in image.devices for option in ("--device", device)),
        *(option for mount in _mounts(spec, facts) for option in ("--mount", _bind(mount))),
        *(
            option
            for path in files
            for option in ("--mount", _bind(Mount(path, "/etc/passwd", read_only=True)))
        ),
        *("--env", f"MUSTER_AGENT={PRIVATE}", "--workdir", "/"),
    )


def _users(facts: Facts, image: HostImage) -> Iterator[str]:
    """The options that make files of the ranks belong to the user, independently of the image's user."""
    uid, gid = _user(facts, image)
    yield from ("--user", f"{uid}:{gid}")
    if image.engine == "podman" and image.rootless:
        yield from ("--userns", "keep-id")
    if image.remapped:
        yield from ("--userns", "host")
    if not image.rootless:
        for group in image.groups:
            yield from ("--group-add", str(group))
    if image.raises_limits:
        yield from ("--ulimit", "memlock=-1:-1")
        if image.open_files > 0:
            yield from ("--ulimit", f"nofile={image.open_files}:{image.open_files}")


def _user(facts: Facts, image: HostImage) -> tuple[int, int]:
    """The user's numbers inside. A rootless docker has the user as its root."""
    return (0, 0) if image.engine == "docker" and image.rootless else (facts.uid, image.gid)


def _apptainer(spec: LaunchSpec, facts: Facts, image: HostImage) -> tuple[str, ...]:
    """The options of `apptainer exec`, which uses the host's network, processes and devices."""
    binds = (f"{mount.source}:{mount.target}{':ro' * mount.read_only}" for mount in _mounts(spec, facts))
    gpus = ("--nv",) if _gpus(spec, facts, image) else ()
    return (
        *("exec", "--cleanenv", "--no-home", "--pwd", "/", *gpus),
        *(option for bind in binds for option in ("--bind", bind)),
        *("--env", f"MUSTER_AGENT={PRIVATE}"),
    )


def _mounts(spec: LaunchSpec, facts: Facts) -> tuple[Mount, ...]:
    """Folders that the container has at the same paths as the host, and those of --mount."""
    muster = MusterPaths.of_home(facts.home)
    return (
        Mount(JobPaths.of(facts.home, spec.job).folder),
        Mount(muster.of(HOME)),
        Mount(muster.of("data"), read_only=True),
        Mount(PRIVATE),
        *([Mount(muster.kept(spec.project))] if spec.keep else []),
        *spec.of(ContainerOptions).mount,
    )


def _bind(mount: Mount) -> str:
    """The value of `--mount`, which the engines read as a line of CSV."""
    fields = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    fields += ["readonly"] if mount.read_only else []
    return ",".join(_quoted(field) for field in fields)


def _quoted(field: str) -> str:
    doubled = field.replace('"', '""')
    return f'"{doubled}"' if re.search(r'[",\n]', field) else field


def _gpus(spec: LaunchSpec, facts: Facts, image: HostImage) -> tuple[str, ...]:
    """The options for the host's NVIDIA GPUs; none if CUDA_VISIBLE_DEVICES is empty or -1."""
    if not facts.gpus or dict(spec.env).get("CUDA_VISIBLE_DEVICES") in {"", "-1"}:
        return ()
    if image.engine == "docker" and image.gpus == "toolkit":
        return ("--gpus", "all")
    if image.gpus == "cdi" or (image.engine == "apptainer"):
        return ("--device", "nvidia.com/gpu=all")
    what = "no CDI specification of its GPUs" if image.engine == "podman" else "no NVIDIA container toolkit"
    remedy = (
        "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml; or --env CUDA_VISIBLE_DEVICES= without GPUs"
        if image.engine == "podman"
        else "install nvidia-container-toolkit there; or --env CUDA_VISIBLE_DEVICES= without GPUs"
    )
    raise HostError("container.gpus", f"it has GPUs, but {what} for {image.engine}", remedy)


def found_inside(
    spec: LaunchSpec, host_facts: Mapping[str, Facts], images: Mapping[str, HostImage]
) -> Mapping[str, Facts]:
    """The facts of each host inside of its container; `UnfitError` without a launcher."""
    facts_inside = {name: container_facts(host_facts[name], image) for name, image in images.items()}
    name_of_image = spec.of(ContainerOptions).image
    if spec.launcher == "torchrun":
        lacking = [name for name, facts in facts_inside.items() if facts.torch is None]
        why = f"{name_of_image} has no torch, and so no torchrun"
    else:
        lacking = [name for name, facts in facts_inside.items() if facts.mpirun is None]
        why = f"neither {name_of_image} nor the host has mpirun; --launcher torchrun needs none"
    if lacking:
        raise UnfitError((name, why) for name in lacking)
    return facts_inside


def plan_containers(
    spec: LaunchSpec, facts: Mapping[str, Facts], images: Mapping[str, HostImage]
) -> dict[str, ContainerPlan]:
    """The container of each host; `UnfitError` for hosts that cannot pass it GPUs."""
    plans, reasons = {}, []
    for name, image in images.items():
        try:
            plans[name] = plan_container(spec, name, facts[name], image)
        except HostError as error:
            reasons.append((name, error.reason))
    if reasons:
        raise UnfitError(reasons)
    return plans


def contributions(
    spec: LaunchSpec, facts: Mapping[str, Facts], images: Mapping[str, HostImage], programs: Mapping[str, str]
) -> tuple[Mapping[str, Contribution], Mapping[str, ContainerPlan]]:
    """What the container of each host adds to its plan, and the containers."""
    found, plans = found_inside(spec, facts, images), plan_containers(spec, facts, images)
    reference = spec.of(ContainerOptions).image
    added = {
        name: Contribution(
            facts=found[name],
            files=tuple(_files(spec, plans[name], facts[name], image, programs)),
            own_files=True,
            about_host=(f"container of {plans[name].image}", f"  {shlex.join(plans[name].argv)}"),
            launcher_runs="of the container" if plans[name].launcher_inside else "",
            record={"image": reference},
            if_module_is_missing=f"the image {harmless(reference)} has no {{name}}; add its package there",
        )
        for name, image in images.items()
    }
    return added, plans


def _files(
    spec: LaunchSpec, container: ContainerPlan, facts: Facts, image: HostImage, texts: Mapping[str, str]
) -> Iterator[RemoteFile]:
    """The files of a container in the job's folder. mpirun outside starts a `muster-rank` that enters it."""
    programs = JobPaths.of(facts.home, spec.job).programs
    for name, text in texts.items():
        yield RemoteFile(f"{programs}/{name}", 0o600, text)
    if (users := passwd(facts, image)) is not None:
        yield UnshownFile(f"{programs}/passwd", 0o644, users)
    if not container.launcher_inside and image.inside:
        enter = (facts.executable, "-IS", f"{programs}/enter.py")
        rank = (image.inside.executable, "-IS", f"{programs}/rank.py")
        rsh = (facts.executable, "-IS", f"{programs}/rsh.py")
        for name, argv in (("rank", (*enter, *rank)), ("rsh", rsh)):
            start = f'#!/bin/sh\nexec {shlex.join(argv)} "$@"\n'
            yield RemoteFile(f"{programs}/muster-{name}", 0o700, start)


# A host that lacks the image fetches it: as long as it reports that it is busy, it has time.
LOOK_SECONDS, PULL_SECONDS = 300.0, 6 * 3600.0
START_SECONDS = 180.0
# Messages of engines if a registry asks for a login; Docker's registry answers so for unknown names too.
_REFUSED = re.compile(r"(?i)no basic auth credentials|unauthorized|denied|authentication required")
ON_HOST = Path(__file__).parent / "on_host"
_PROCESSES = Path(__file__).parents[2] / "core" / "agent" / "processes.py"
_PROGRAMS = (ON_HOST / "keeper.py", ON_HOST / "enter.py", _PROCESSES)


class Containers(Feature):
    """The image that a launch names, on each host."""

    def __init__(self, spec: LaunchSpec) -> None:
        options = spec.of(ContainerOptions)
        self._image, self._engine = options.image, options.engine
        self._survey = (ON_HOST / "survey.py").read_bytes()
        self._answers: dict[str, Future[HostImage]] = {}
        self._plans: Mapping[str, ContainerPlan] = {}

    def greet(self, channel: Channel) -> None:
        """Ask a host for the image while other hosts are still connecting."""
        self._answers[channel.host] = self._post(channel, pull=False)

    def prepare(self, start: Start, cluster: Cluster) -> Mapping[str, Contribution]:
        """Let hosts without the image fetch it, unless nothing may change there."""
        start.emit(Stage(with_hosts(f"looking for the image {self._image}")))
        with start.timings.part("image"):
            images = self._require(cluster, start.emit, pull=not start.is_dry_run)
        added, self._plans = contributions(start.spec, cluster.facts, images, programs())
        return added

    def delivered(self, plan: LaunchPlan, cluster: Cluster) -> None:
        """Start the container of each host with ranks."""
        channels = {host.host.name: cluster.channels[host.host.name] for host in plan.hosts}

        def start(name: str) -> None:
            container = self._plans[name]
            started = channels[name].post(
                CONTAINER_START,
                argv=container.argv,
                remove=container.remove,
                launcher_inside=container.launcher_inside,
                environment=dict(container.environment),
            )
            channels[name].wait(started, START_SECONDS)

        on_every(channels, start, interrupted=cluster.close).require_all()

    def _require(self, cluster: Cluster, emit: Emit, *, pull: bool) -> Mapping[str, HostImage]:
        """The image of every host; `UnfitError` where it is missing or another. `pull`: fetch it."""
        channels = cluster.channels
        for host in channels.keys() - self._answers.keys():
            self.greet(channels[host])

        def look(host: str) -> HostImage:
            return channels[host].wait(self._answers.pop(host), LOOK_SECONDS)

        images = on_every(channels, look, interrupted=cluster.close).require_all()
        if lacking := [host for host, image in images.items() if not image.id]:
            if not pull or images[lacking[0]].engine == "apptainer":
                raise UnfitError((host, self._lacks(images[host])) for host in lacking)
            emit(Waiting(f"{', '.join(lacking)}: fetching {self._image}"))
            fetched = on_every(
                lacking,
                lambda host: self._fetch(channels[host], images[host].engine),
                interrupted=cluster.close,
            )
            images |= fetched.require_all()
        require_same(self._image, images)
        return images

    def _fetch(self, channel: Channel, engine: EngineName) -> HostImage:
        try:
            return channel.wait(self._post(channel, pull=True), PULL_SECONDS)
        except LostError:
            raise
        except MusterError as error:
            login = (
                f"log in to its registry there ({engine} login), or " if _REFUSED.search(error.reason) else ""
            )
            bring = push_commands(self._image, engine)
            raise MusterError(
                f"{error.reason}; {login}bring it from here: {bring}", host=channel.host
            ) from None

    def _post(self, channel: Channel, *, pull: bool) -> Future[HostImage]:
        return channel.post(CONTAINER, self._survey, image=self._image, engine=self._engine, pull=pull)

    def _lacks(self, image: HostImage) -> str:
        if image.engine == "apptainer":
            return f"there is no {self._image}; bring it: {push_commands(self._image, image.engine)}"
        return (
            f"{image.engine} has no image {self._image}; a launch lets the host fetch it, a dry run "
            f"does not; or bring it from here: {push_commands(self._image, image.engine)}"
        )


def programs() -> dict[str, str]:
    """The programs of the agent for a job's folder, by file name."""
    return {path.name: path.read_text() for path in _PROGRAMS}
