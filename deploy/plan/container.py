"""Plans whose ranks run in containers: the engine's command, who starts the ranks, what the image has. Pure.

One container for each host and attempt. Its first process is `keeper.py` (deploy/agent/container), which
starts commands for the agent. It has the host's network, process numbers and shared memory, and folders at
the same paths, so that agents, launchers and ranks find each other as without a container.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from ..common.paths import JobPaths, MusterPaths
from ..errors import HostError, UnfitError
from ..hosts.containers import SHOWN, HostImage, inside
from ..hosts.facts import Facts
from .launch_plan import ContainerPlan, HostPlan, RemoteFile
from .spec import LaunchSpec, Mount

PRIVATE = "$MUSTER_AGENT"
"""The agent's private folder in the engine's argv: the agent puts in its own (deploy/agent/container)."""


def plan_container(spec: LaunchSpec, host: str, facts: Facts, there: HostImage) -> ContainerPlan:
    """The container of a host; `HostError` for GPUs that cannot get into one."""
    paths, muster = JobPaths.of(facts.home, spec.job), MusterPaths.of_home(facts.home)
    apptainer = there.engine == "apptainer"
    name = container_name(spec, host)
    image = spec.image if apptainer else there.id
    keeper = ("-IS", f"{paths.programs}/keeper.py")
    python = there.inside.executable if there.inside else "python3"
    options = _apptainer(spec, facts, there) if apptainer else _engine(spec, name, facts, there)
    command = (image, python, *keeper) if apptainer else ("--entrypoint", python, image, *keeper)
    return ContainerPlan(
        image=f"{spec.image} ({there.engine}, {there.id[:SHOWN]})",
        argv=(there.program, *options, *command),
        remove=() if apptainer else (there.program, "rm", "--force", name),
        launcher_inside=spec.launcher != "mpirun" or bool(there.inside and there.inside.mpirun),
        environment=(("HOME", muster.container_home), ("USER", there.user), ("LOGNAME", there.user)),
    )


def container_name(spec: LaunchSpec, host: str) -> str:
    """The name of a host's container: `muster-20261120-120000-abcd-0-node1`."""
    return re.sub(r"[^\w.-]", "-", f"muster-{spec.job}-{spec.attempt}-{host}")


def passwd(facts: Facts, there: HostImage) -> str | None:
    """The /etc/passwd of the container: the image's with the user added. None if the image has the number.

    mpirun, and Python's getpass, fail for a user without an entry.
    """
    uid, _ = _user(facts, there)
    known = there.inside.passwd if there.inside else ""
    if there.engine != "docker" or re.search(rf"(?m)^[^:\n]*:[^:\n]*:{uid}:", known):
        return None  # podman and apptainer write the entry themselves
    others = [line for line in known.splitlines() if line and not line.startswith(f"{there.user}:")]
    home = MusterPaths.of_home(facts.home).container_home
    entry = f"{there.user}:x:{uid}:{there.gid}::{home}:/bin/sh"
    return "\n".join((*others, entry)) + "\n"


def _engine(spec: LaunchSpec, name: str, facts: Facts, there: HostImage) -> tuple[str, ...]:
    """The options of `docker run` and `podman run`, which are the same but for users and limits."""
    paths = JobPaths.of(facts.home, spec.job)
    own = ("--name", name, "--label", f"muster.home={there.home}", "--label", f"muster.folder={paths.folder}")
    host = ("--network", "host", "--pid", "host", "--ipc", "host", "--security-opt", "label=disable")
    files = (f"{paths.programs}/passwd",) if passwd(facts, there) is not None else ()
    return (
        *("run", "--rm", "--no-healthcheck", *own, *host),
        *_users(facts, there),
        *_gpus(spec, facts, there),
        *(word for device in there.devices for word in ("--device", device)),
        *(word for mount in _mounts(spec, facts) for word in ("--mount", _bind(mount))),
        *(word for path in files for word in ("--mount", _bind(Mount(path, "/etc/passwd", read_only=True)))),
        *("--env", f"MUSTER_AGENT={PRIVATE}", "--workdir", "/"),
    )


def _users(facts: Facts, there: HostImage) -> Iterator[str]:
    """Files that ranks write belong to the user, whatever user the image has."""
    uid, gid = _user(facts, there)
    yield from ("--user", f"{uid}:{gid}")
    if there.engine == "podman" and there.rootless:
        yield from ("--userns", "keep-id")
    if there.remapped:
        yield from ("--userns", "host")
    if not there.rootless:
        for group in there.groups:
            yield from ("--group-add", str(group))
    if there.raises_limits:
        yield from ("--ulimit", "memlock=-1:-1")
        if there.open_files > 0:
            yield from ("--ulimit", f"nofile={there.open_files}:{there.open_files}")


def _user(facts: Facts, there: HostImage) -> tuple[int, int]:
    """The user's numbers inside. A rootless docker has the user as its root."""
    return (0, 0) if there.engine == "docker" and there.rootless else (facts.uid, there.gid)


def inner_uid(facts: Facts, there: HostImage) -> int:
    """The user's number as programs in the container see it."""
    return _user(facts, there)[0]


def _apptainer(spec: LaunchSpec, facts: Facts, there: HostImage) -> tuple[str, ...]:
    """The options of `apptainer exec`, whose network, processes and devices are the host's anyway."""
    binds = (f"{mount.source}:{mount.target}{':ro' * mount.read_only}" for mount in _mounts(spec, facts))
    gpus = ("--nv",) if _gpus(spec, facts, there) else ()
    return (
        *("exec", "--cleanenv", "--no-home", "--pwd", "/", *gpus),
        *(word for bind in binds for word in ("--bind", bind)),
        *("--env", f"MUSTER_AGENT={PRIVATE}"),
    )


def _mounts(spec: LaunchSpec, facts: Facts) -> tuple[Mount, ...]:
    """Folders that the container has at the paths that they have outside, and those that the user wants."""
    muster = MusterPaths.of_home(facts.home)
    return (
        Mount(JobPaths.of(facts.home, spec.job).folder),
        Mount(muster.container_home),
        Mount(muster.data, read_only=True),
        Mount(PRIVATE),
        *spec.mounts,
    )


def _bind(mount: Mount) -> str:
    """The words of `--mount`; the engines read them as a line of CSV."""
    fields = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    fields += ["readonly"] if mount.read_only else []
    return ",".join(_quoted(field) for field in fields)


def _quoted(field: str) -> str:
    doubled = field.replace('"', '""')
    return f'"{doubled}"' if re.search(r'[",\n]', field) else field


def _gpus(spec: LaunchSpec, facts: Facts, there: HostImage) -> tuple[str, ...]:
    """How the host's NVIDIA GPUs get in. If the ranks are to see no GPU, the container gets none."""
    if not facts.gpus or dict(spec.env).get("CUDA_VISIBLE_DEVICES") in {"", "-1"}:
        return ()
    if there.engine == "docker" and there.gpus == "toolkit":
        return ("--gpus", "all")
    if there.gpus == "cdi" or (there.engine == "apptainer"):
        return ("--device", "nvidia.com/gpu=all")
    what = "no CDI specification of its GPUs" if there.engine == "podman" else "no NVIDIA container toolkit"
    remedy = (
        "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml; or --env CUDA_VISIBLE_DEVICES= without GPUs"
        if there.engine == "podman"
        else "install nvidia-container-toolkit there; or --env CUDA_VISIBLE_DEVICES= without GPUs"
    )
    raise HostError("container.gpus", f"it has GPUs, but {what} for {there.engine}", remedy)


def found_inside(
    spec: LaunchSpec, outside: Mapping[str, Facts], there: Mapping[str, HostImage]
) -> Mapping[str, Facts]:
    """What the launch finds in the image on each host; `UnfitError` without what starts the ranks."""
    if not there:
        return outside
    known = {
        name: dataclasses.replace(inside(facts, there[name]), uid=inner_uid(facts, there[name]))
        for name, facts in outside.items()
    }
    if spec.launcher == "torchrun":
        lacking = [name for name, facts in known.items() if facts.torch is None]
        why = f"{spec.image} has no torch, of which torchrun is a part"
    else:
        lacking = [name for name, facts in known.items() if facts.mpirun is None]
        why = f"neither {spec.image} nor the host has mpirun; --launcher torchrun needs none"
    if lacking:
        raise UnfitError((name, why) for name in lacking)
    return known


def contained(
    spec: LaunchSpec,
    plans: Sequence[HostPlan],
    outside: Mapping[str, Facts],
    there: Mapping[str, HostImage],
    *,
    programs: Mapping[str, str],
) -> tuple[HostPlan, ...]:
    """The plans of hosts with a container each; `UnfitError` with every host whose GPUs cannot get in."""
    plans_inside, reasons = [], []
    for host in plans:
        name = host.host.name
        try:
            container = plan_container(spec, name, outside[name], there[name])
        except HostError as error:
            reasons.append((name, error.reason))
            continue
        more = _container_files(host, container, outside[name], there[name], programs)
        files = {file.path: file for file in (*host.files, *more)}  # a later file replaces an earlier one
        plans_inside.append(dataclasses.replace(host, files=tuple(files.values()), container=container))
    if reasons:
        raise UnfitError(reasons)
    return tuple(plans_inside)


def _container_files(
    host: HostPlan, container: ContainerPlan, facts: Facts, there: HostImage, texts: Mapping[str, str]
) -> Iterator[RemoteFile]:
    """What a container needs in the job's folder. mpirun outside starts a `muster-rank` that goes inside."""
    programs = JobPaths(host.folder).programs
    for name, text in texts.items():
        yield RemoteFile(f"{programs}/{name}", 0o600, text)
    if (users := passwd(facts, there)) is not None:
        yield RemoteFile(f"{programs}/passwd", 0o644, users)
    if not container.launcher_inside and there.inside:
        enter = (facts.executable, "-IS", f"{programs}/enter.py")
        rank = (there.inside.executable, "-IS", f"{programs}/rank.py")
        rsh = (facts.executable, "-IS", f"{programs}/rsh.py")
        for name, argv in (("rank", (*enter, *rank)), ("rsh", rsh)):
            start = f'#!/bin/sh\nexec {shlex.join(argv)} "$@"\n'
            yield RemoteFile(f"{programs}/muster-{name}", 0o700, start)
