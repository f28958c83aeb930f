"""What explains a job that stands still: the stacks of its ranks, and why they wait (deploy/why)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..connect.channel import Channel
from ..connect.cluster import Cluster
from ..plan.launch_plan import LaunchPlan
from ..plan.spec import LaunchSpec
from .pairs import unreached_pairs
from .result import Failure
from .stacks import Stacks, of_evidence
from .state import State

if TYPE_CHECKING:
    from ..why.verdict import Verdict

# Failures that only the ranks themselves can explain.
STUCK = frozenset({"start", "stall"})
MOST_PAIRS = 3
# What Gloo, NCCL and Muster's MPI backend say of a collective that took too long.
_TIMED_OUT = re.compile(r"timed out|timeout", re.IGNORECASE)


@dataclass(frozen=True)
class Explanation:
    """The stacks at the time of the failure, and the verdict on why the ranks wait, if they recorded that.

    `unreached`: a sentence for each host that does not reach another one.
    """

    stacks: Stacks
    why: Verdict | None
    unreached: tuple[str, ...] = ()


def needed(failure: Failure | None, spec: LaunchSpec) -> bool:
    """Whether a failure is a job that stands still, or a collective that timed out in a recorded job."""
    if failure is None:
        return False
    timed_out = failure.kind == "rank" and spec.record and any(map(_TIMED_OUT.search, failure.tail))
    return failure.kind in STUCK or timed_out


def gather_explanation(
    failure: Failure, plan: LaunchPlan, cluster: Cluster, channels: Mapping[str, Channel]
) -> Explanation:
    """Ask the hosts of `channels`, before the job is ended."""
    from ..why.gather import gather, with_silent  # noqa: PLC0415  # few jobs stand still, and every launch would pay
    from ..why.verdict import explain  # noqa: PLC0415

    ranks, problems = gather(plan.spec.job, channels)
    names = [host.host.name for host in plan.hosts]
    places = {place.rank: place.host for place in plan.ranks}
    silent = [name for name in names if name in problems or name not in channels]
    recorded = plan.spec.record and failure.kind != "start"
    stands_still = failure.kind == "stall" and failure.rank is None
    return Explanation(
        of_evidence(ranks, problems),
        explain(with_silent(ranks, places, silent), stalled=True) if recorded else None,
        tuple(unreached_pairs(plan, cluster, channels)) if stands_still else (),
    )


def explained(failure: Failure, explanation: Explanation, state: State) -> Failure:
    """The failure with the stacks, and with hosts that do not reach each other, or else odd ranks."""
    stacks = explanation.stacks
    if failure.kind == "rank":
        return failure  # its own last lines say more
    odd = stacks.odd if failure.kind == "stall" and failure.rank is None else []
    reason = f"{failure.reason}; not where the others are: {state.name(odd)}" if odd else failure.reason
    if explanation.unreached:  # then no rank is to blame for where it is
        reason = "; ".join((failure.reason, *explanation.unreached[:MOST_PAIRS]))
    return replace(failure, reason=reason, tail=(*failure.tail, *str(stacks).splitlines()))
