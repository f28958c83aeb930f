"""Sums over all ranks that carry their purpose: two of unlike purpose are an error that names the ranks.

Every all_reduce of this library has the same size, type and operation. So where one rank leaves the loop
while the others compute a loss, the two messages meet as they must, and each rank reads what the others do.
With messages of other sizes the result would be a wrong number, or a wait until the time-out. Over MPI they
have a communicator of their own: a collective of another size, such as DDP's, damages the memory of a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import torch

from .failure import TrainError


class Purpose(IntEnum):
    """What a rank does in a message; `does` is the text of the error."""

    MEAN = 0, "computes the mean of a loss (global_mean)"
    SUM = 1, "adds up values (all_reduce_sum)"
    BARRIER = 2, "waits for all ranks (barrier)"
    CHECK = 3, "saves or checks for inf and nan (save, check_finite)"
    STEP = 4, "goes on with a step (batches)"
    EPOCH = 5, "begins an epoch (batches)"
    LEAVE = 6, "has left the loop"
    ASK = 7, "asks whether the job is to end (Preemption.asked)"

    does: str

    def __new__(cls, number: int, does: str) -> Purpose:
        made = int.__new__(cls, number)
        made._value_, made.does = number, does
        return made


_STEPS = {Purpose.CHECK, Purpose.STEP, Purpose.LEAVE}  # whose message has the number of a step
_KINDS = len(Purpose)
VALUES = 4
"""How many values a message has."""
SIZE = 2 * _KINDS + VALUES
# A rank adds this and its number to the field of its purpose: the sum has how many ranks did so, and which
# rank, if it is one. It is exact in float64 below 8192 ranks, and only the number of a rank is lost above.
_ONE = float(2**26)


def message(
    purpose: Purpose, rank: int, device: torch.device, values: Sequence[float] = (), step: int = 0
) -> torch.Tensor:
    """Return the message of a rank, filled on the device: a copy to a GPU would make the host wait for it."""
    numbers = [0.0] * SIZE
    numbers[purpose], numbers[_KINDS + purpose] = _ONE + rank, float(step)
    numbers[2 * _KINDS : 2 * _KINDS + len(values)] = values
    if device.type == "cpu":
        return torch.tensor(numbers, dtype=torch.float64)
    made = torch.zeros(SIZE, dtype=torch.float64, device=device)
    for place, number in enumerate(numbers):
        if number:
            made[place].fill_(number)
    return made


def values_of(sent: torch.Tensor) -> torch.Tensor:
    """Return the values of a message, or of a sum of messages."""
    return sent[2 * _KINDS :]


def read(total: torch.Tensor, purpose: Purpose, hosts: Sequence[str], step: int = 0) -> list[float]:
    """Return the sums of the values, for which it waits; TrainError if ranks had another purpose or step."""
    numbers = [float(number) for number in total.tolist()]
    counts, steps = numbers[:_KINDS], numbers[_KINDS : 2 * _KINDS]
    if sum(counts) != len(hosts) * _ONE + sum(range(len(hosts))) or min(counts) < 0:
        raise TrainError(
            f"the ranks do different things: this one {purpose.does}, another is in another collective\n"
            "every rank must do the same in every step: leave a loop and save on all ranks, or on none"
        )
    if any(count for kind, count in enumerate(counts) if kind != purpose):
        kinds = [kind for kind in Purpose if counts[kind]]
        who = [_who(kind, counts[kind], steps[kind], hosts) for kind in kinds]
        raise TrainError(
            "the ranks do different things: " + ", and ".join(who) + "\n"
            "every rank must do the same in every step: leave a loop and save on all ranks, or on none"
        )
    if steps[purpose] != step * len(hosts):
        raise TrainError(
            f"the ranks are in different steps: this one in step {step}, "
            f"the others in step {(steps[purpose] - step) / max(1, len(hosts) - 1):g} on average"
        )
    return numbers[2 * _KINDS :]


def _who(purpose: Purpose, count: float, step: float, hosts: Sequence[str]) -> str:
    many, rank = divmod(int(count), int(_ONE))
    ranks = f"rank {rank} ({hosts[rank]})" if many == 1 and rank < len(hosts) else f"each of {many} ranks"
    place = f", step {int(step // many)}" if purpose in _STEPS else ""
    return f"{ranks} {purpose.does}{place}"
