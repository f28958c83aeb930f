"""torchrun: one agent on every host, told its place, meeting at the head."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import HostError
from ..hosts.facts import Facts, Meeting


def command(
    *,
    python: str,
    job: str,
    hosts: int,
    host_index: int,
    ranks_per_host: int,
    meeting: Meeting,
    rank: Sequence[str],
) -> tuple[str, ...]:
    """The argv of torchrun for one host.

    Static rendezvous: the driver knows every host, so nothing has to be discovered. The run id is the job's,
    because two jobs with one id at one endpoint merge into one (torch.distributed.run, "Definitions").
    Restarts are the driver's: an agent would restart its own host only.
    """
    return (
        python,
        *("-m", "torch.distributed.run"),
        *("--nnodes", str(hosts)),
        *("--node-rank", str(host_index)),
        *("--nproc-per-node", str(ranks_per_host)),
        *("--rdzv-backend", "static"),
        *("--rdzv-id", job),
        *("--master-addr", meeting.address),
        *("--master-port", str(meeting.port)),
        *("--max-restarts", "0"),
        "--no-python",
        *rank,
    )


def unfit_for_torch(facts: Facts) -> HostError | None:
    """Why a host cannot run a PyTorch program."""
    if facts.torch is None:
        text = f"{facts.executable} has no torch"
        return HostError("torch.missing", text, "install it, or name another interpreter with --python")
    return None
