"""A job as a value: what the user asks for, known before any host is asked. A detached job's head gets it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..decode import from_json
from ..hosts.hostfile import Host
from ..launch.sampling import SAMPLE_SECONDS
from ..plan.source_tree import Tree
from ..plan.spec import LaunchSpec

MAX_LOG = 8 << 30
"""Bytes that the logs of a run may take on the driver's disk, unless --max-log gives another number."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A launch, and the rules for starting it again when it fails."""

    spec: LaunchSpec
    hosts: tuple[Host, ...]
    """All hosts that it may use, in the order of the hosts file. Some may get no rank."""
    tree: Tree
    library: Tree
    """What every rank can import besides the tree: `muster.train`."""
    start_timeout: float
    stall_timeout: float = 0.0
    network: str = ""
    """The data network: a CIDR, or the name of an interface of the head; empty for the first that works."""
    max_restarts: int = 0
    min_hosts: int = 1
    max_log: int = MAX_LOG
    """Bytes that its logs may take on the disk of its driver; 0 for no limit."""
    sample_every: float = SAMPLE_SECONDS
    """Seconds between two samples of each host; 0 for none."""
    slurm: tuple[str, ...] = ()
    """Options of salloc, for a driver that asks Slurm for the hosts itself."""
    slurm_timeout: float = 0.0
    """Seconds that such a driver waits for the hosts; 0 for no limit."""
    notify: str = ""
    """A command or a URL that gets the result at the end."""
    python: str = ""
    """The Python of the hosts, if the user named one."""
    pythons: Mapping[str, str] = field(default_factory=dict)
    """Otherwise, the path of the Python that setup gave a host, by host name. Other hosts use `python3`."""

    def as_json(self) -> dict[str, Any]:
        """Plain values. They contain the environment, so never write them to a file or a command line."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return plain

    @staticmethod
    def of_json(value: Mapping[str, Any]) -> Job:
        """The job that `as_json` made this of."""
        job: Job = from_json(Job, value)
        return job
