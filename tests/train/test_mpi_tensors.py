"""What MPI itself cannot do with tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.train.conftest import Launch

LARGE = """
import torch
from mpi4py import MPI
from muster.train.mpi_backend.direct import broadcast
broadcast(MPI.COMM_WORLD, torch.empty(2**31, dtype=torch.uint8))  # which never touches its memory
print("sent")
"""


def test_a_tensor_of_2_gib_is_broadcast(launch: Launch) -> None:
    job = launch("mpirun", 1, "-c", LARGE)
    assert job.stdout == "sent\n", job.stderr
