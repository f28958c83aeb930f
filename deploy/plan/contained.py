"""Plans whose ranks run in containers: what the launch finds in the image, and what containers need. Pure."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping, Sequence

from ..common.paths import JobPaths
from ..errors import HostError, UnfitError
from ..hosts.containers import ContainerThere, inside
from ..hosts.facts import Facts
from .container import ContainerPlan, inner_uid, passwd, plan_container
from .launch_plan import HostPlan, RemoteFile
from .spec import LaunchSpec


def found_inside(
    spec: LaunchSpec, outside: Mapping[str, Facts], there: Mapping[str, ContainerThere]
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
    there: Mapping[str, ContainerThere],
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
    host: HostPlan, container: ContainerPlan, facts: Facts, there: ContainerThere, texts: Mapping[str, str]
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
