"""Whether all ranks mean the same collective: asked before each one under TORCH_DISTRIBUTED_DEBUG=DETAIL.

torch's own check does not apply to process groups in Python. Without a check, ranks that differ in size get
an error of MPI's, wrong numbers, or wait until the time-out.
"""

from __future__ import annotations

from ..job.mpi_world import MPI
from .errors import MismatchError

_ROOM = 128  # bytes of description from each rank


def demand(comm: MPI.Intracomm, mine: str) -> None:
    """Raise MismatchError on every rank, with every rank's description, unless all are equal to `mine`."""
    said = bytearray(_ROOM * comm.size)
    comm.Allgather(mine.encode()[:_ROOM].ljust(_ROOM), said)
    each = [
        said[start : start + _ROOM].decode(errors="replace").rstrip() for start in range(0, len(said), _ROOM)
    ]
    if len(set(each)) > 1:
        raise MismatchError(
            "the ranks differ: " + "; ".join(f"rank {rank}: {what}" for rank, what in enumerate(each))
        )
