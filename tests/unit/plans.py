"""Plans of imagined hosts, for tests of what is done with a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.host_facts import Facts
from muster.deploy.core.hosts.rendezvous import ClusterFacts, Rendezvous
from muster.deploy.core.plan.launch_plan import Contribution, LaunchPlan
from muster.deploy.core.plan.launcher import place_ranks
from muster.deploy.core.plan.planner import RankPrograms, plan
from muster.deploy.core.plan.source_tree import Tree, TreeFile
from muster.deploy.core.plan.spec import LaunchSpec, Program
from muster.deploy.features.all_options import OPTIONS
from muster.deploy.features.containers.driver import HostImage, contributions
from muster.deploy.features.leases.messages import Lease
from muster.deploy.features.leases.plan import visible

TOOLS = RankPrograms(
    rank="# rank.py\n",
    rsh="# rsh.py\n",
    in_rank={
        "sitecustomize.py": "# sitecustomize.py\n",
        "muster_program_end.py": "# muster_program_end.py\n",
    },
)
INSIDE = {"keeper.py": "# keeper.py\n", "enter.py": "# enter.py\n"}
NOTHING = Contribution()
LIBRARY = Tree(Path("/opt/muster"), ".", (), "muster")
TREE = Tree(Path("/work/digits"), ".", (TreeFile("train/__main__.py", False, "ab" * 32, size=2500),))
NODE = Facts(
    hostname="node1",
    home="/home/ml",
    uid=1000,
    python="3.13.5",
    executable="/usr/bin/python3",
    torch="2.6.0",
    mpi4py="4.0.3",
    mpirun="/usr/bin/mpirun",
    mpi="5.0.7",
    cores=8,
    gpus=0,
    addresses=("10.0.0.1",),
    interfaces={"10.0.0.1": "eth0"},
)
OWN_HOME: dict[str, Any] = {
    "home": "/home/a b",
    "executable": "/home/a b/venv/bin/python",
    "mpirun": "/opt/mpi/bin/mpirun",
    "interfaces": {"10.0.0.2": "ens5"},
}


def request_of(**given: Any) -> LaunchSpec:
    """A request; fields of the options of a feature go there."""
    parts, given["no_record"] = [], not given.pop("record", False)
    for kind in OPTIONS:
        own = {each.name: given.pop(each.name) for each in dataclasses.fields(kind) if each.name in given}
        parts += [kind(**own)] if own else []
    return LaunchSpec(**given).having(*parts)


def make_plan(
    text: str,
    *,
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    containers: Mapping[str, HostImage] | None = None,
    leases: Mapping[str, Lease] | None = None,
    added: Contribution = NOTHING,
    head: str = "10.0.0.1",
    **spec: object,
) -> LaunchPlan:
    hosts = hostfile.parse(text)
    defaults: dict[str, Any] = {
        "job": "20261120-120000-abcd",
        "program": Program(module="train", args=("--epochs", "3")),
        "tree": TREE,
        "library": LIBRARY,
    }
    request = request_of(**{**defaults, **spec})
    placement = place_ranks(hosts, request)
    chosen = placement.connected
    changes = facts or {}
    by_host = {host.name: dataclasses.replace(NODE, **changes.get(host.name, {})) for host in chosen}
    single = len(chosen) == 1
    rendezvous = Rendezvous(
        "127.0.0.1" if single else head,
        20123,
        {name: "lo" if single else next(iter(facts.interfaces.values())) for name, facts in by_host.items()},
    )
    more = dict.fromkeys(by_host, added)
    for host, lease in (leases or {}).items():
        numbers = tuple(device.index for device in lease.got)
        more[host] += Contribution(gpus=numbers, env=visible(request, lease))
    for host, each in contributions(request, by_host, containers or {}, INSIDE)[0].items():
        more[host] += each
        by_host[host] = each.facts or by_host[host]
    return plan(request, placement, ClusterFacts(by_host, rendezvous), more, TOOLS)
