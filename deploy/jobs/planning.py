"""The plan of one attempt, made on hosts that are connected."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..connect.cluster import Cluster
from ..console.progress import OnStage, show_no_stage
from ..envs.present import Packages
from ..hosts.leases import Lease
from ..launch.deliver import LaunchImages
from ..launch.stages import with_hosts
from ..plan.container import found_inside
from ..plan.launch_plan import LaunchPlan
from ..plan.placement import Placement
from ..plan.planner import Tools, plan
from ..plan.spec import LaunchSpec
from ..timings import Timings

AGENT = Path(__file__).parents[1] / "agent"
IN_EVERY_RANK = ("sitecustomize.py", "muster_over.py")
"""The other files of in_rank/ are not for jobs with `--no-record`."""
CONTAINER = ("container/keeper.py", "container/enter.py", "processes.py")


def tools(*, inside: bool = False) -> Tools:
    """The programs of the agent that a job's folder gets, as texts; `inside`: with those of containers."""
    job, in_rank = AGENT / "job", AGENT / "job" / "in_rank"
    recorders = sorted({path.name for path in in_rank.glob("muster_*.py")} - {*IN_EVERY_RANK})
    return Tools(
        rank=(job / "rank.py").read_text(),
        rank_log=(job / "rank_log.py").read_text(),
        rsh=(job / "rsh.py").read_text(),
        in_rank=_texts(in_rank, IN_EVERY_RANK),
        recorder=_texts(in_rank, recorders),
        container=_texts(AGENT, CONTAINER) if inside else {},
    )


def _texts(folder: Path, names: Iterable[str]) -> dict[str, str]:
    return {Path(name).name: (folder / name).read_text() for name in names}


def make_plan(  # noqa: PLR0917  # the parts of an attempt
    spec: LaunchSpec,
    placement: Placement,
    cluster: Cluster,
    timings: Timings,
    packages: Packages | None = None,
    images: LaunchImages | None = None,
    *,
    leases: Mapping[str, Lease] | None = None,
    pull: bool = True,
    on_stage: OnStage = show_no_stage,
) -> LaunchPlan:
    """The plan of one attempt, on hosts that are connected, after `packages` are installed on them.

    `images`: if the hosts were asked before. `leases`: its GPUs on each host. `pull`: hosts without the image
    fetch it.
    """
    if packages:
        on_stage(with_hosts("preparing the packages"))
        with timings.part("packages"):
            cluster.facts.update(packages.provide(cluster))
    containers = None
    if spec.image:
        on_stage(with_hosts(f"looking for the image {spec.image}"))
        with timings.part("image"):
            containers = (images or LaunchImages(spec, lambda line: None)).require(cluster, pull=pull)
    on_stage(with_hosts("testing the network"))
    facts = cluster.survey()
    with timings.part("plan"):
        if packages:
            spec = dataclasses.replace(spec, environment=packages.key, packages=packages.described)
        texts = tools(inside=containers is not None)
        made = plan(spec, placement, facts, tools=texts, containers=containers, leases=leases)
    if containers:  # the records of the run describe the container
        cluster.facts.update(found_inside(spec, facts.hosts, containers))
    return made
