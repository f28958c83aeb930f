"""torchrun: a process on every host, whose command line has its node rank and the rendezvous."""

from __future__ import annotations

from ..errors import HostError
from ..hosts.host_facts import Facts
from .launch_plan import Launcher, Layout

WITHOUT_LIBUV = """\
import runpy, torch.distributed as d
class TCPStore(d.TCPStore):
    def __init__(self, *args, **kwargs):
        super().__init__(*args[:8], **{**kwargs, "use_libuv": False})  # the ninth is use_libuv
d.TCPStore = TCPStore
runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)
"""
"""torchrun for a torch without libuv, which its store asks for whatever USE_LIBUV is."""
IDENTICAL = "TORCH_ELASTIC_WORKER_IDENTICAL"
"""With this variable, torchrun assumes that every host has as many ranks as its own. A site may set it."""


def unfit_for_torch(facts: Facts) -> HostError | None:
    """The reason why a host cannot run a PyTorch program; None if it can."""
    if facts.torch is None:
        text = f"{facts.executable} has no torch"
        return HostError("torch.missing", text, "install it, or name another interpreter with --python")
    return None


class Torchrun(Launcher):
    """torchrun on every host starts the ranks of that host."""

    uses_mpi = False

    def title(self, head: Facts) -> str:
        return f"torchrun (torch {head.torch})"

    def unfit(self, facts: Facts) -> HostError | None:
        return unfit_for_torch(facts)

    def command(self, host: str, layout: Layout) -> tuple[str, ...] | None:
        """The argv of torchrun for each host.

        Static rendezvous: the driver has the list of hosts, so torchrun need not discover them. The run id is
        the job id, because two jobs with the same id at the same endpoint merge (torch.distributed.run,
        "Definitions"). Its agents exchange through the store how many ranks each host has, so the numbers may
        differ (`SimpleElasticAgent._assign_worker_ranks`; tried with torch 2.6 and 2.13).
        The driver does the restarts: an agent of torchrun would restart only its own host.
        """
        return (
            layout.facts[host].executable,
            *(("-m", "torch.distributed.run") if layout.facts[host].has_libuv else ("-c", WITHOUT_LIBUV)),
            *("--nnodes", str(len(layout.ranks))),
            *("--node-rank", str(layout.index[host])),
            *("--nproc-per-node", str(layout.ranks[host])),
            *("--rdzv-backend", "static"),
            *("--rdzv-id", layout.spec.job),
            *("--master-addr", layout.rendezvous.address),
            *("--master-port", str(layout.rendezvous.port)),
            *("--max-restarts", "0"),
            "--no-python",
            *layout.rank_command(mpi=self.uses_mpi),
        )

    def environment(self, host: str, layout: Layout) -> dict[str, str]:
        """With different numbers of ranks on hosts, torchrun must not assume equal ones."""
        return {} if layout.is_even else {IDENTICAL: "0"}
