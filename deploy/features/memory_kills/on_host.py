"""The processes of a host that the kernel has killed for lack of memory."""

from __future__ import annotations

from ...core.agent.supervisor import JobHandler
from ...core.wire.frames import Frame


class OtherKills(JobHandler):
    """Answers how many processes below the ranks were killed."""

    def do_memory_kills(self, request: Frame, payload: bytes) -> Frame:
        """The kills that explain the end of no rank, and the limit."""
        return self.job.ranks.other_kills()
