"""What MPI itself cannot do with tensors, and what it still does with memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.train.conftest import Launch

PROGRAM = """
import gc, torch, weakref
from muster.train.mpi_backend.direct import MPI, broadcast
broadcast(MPI.COMM_WORLD, torch.empty(2**31, dtype=torch.uint8))  # which never touches its memory
print("sent")
from muster.train.mpi_backend.order import Order
from muster.train.mpi_backend.point_to_point import Messages
order, messages = Order(MPI.COMM_SELF.Dup()), Messages(MPI.COMM_SELF.Dup())
order.compare()
message = messages.receive(torch.zeros(2), 0, 1, 9.0)
written = [weakref.ref(order._sent[-1].everyone), weakref.ref(message)]
del order, messages, message
gc.collect()
print(*(each() is not None for each in written))
"""


def test_a_tensor_of_2_gib_is_broadcast_and_memory_in_use_outlives_its_group(
    launch: Launch,
) -> None:
    """A rank may leave a group before another one comes to the last comparison of their calls."""
    job = launch("mpirun", 1, "-c", PROGRAM)
    assert job.stdout == "sent\nTrue True\n", job.stderr
