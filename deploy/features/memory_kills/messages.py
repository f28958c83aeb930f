"""The request for the processes of a host that the kernel has killed for lack of memory."""

from __future__ import annotations

from ...core.connect.requests.request import Request
from ...core.decode import lazy_dataclass
from ...core.hosts.bounds import Bytes, Count


@lazy_dataclass(frozen=True)
class MemoryKills:
    """The processes of a host that the kernel has killed for lack of memory, without those of ranks.

    `limit`: of their cgroup, in bytes.
    """

    kills: Count
    limit: Bytes | None


MEMORY_KILLS = Request("memory_kills", MemoryKills)
