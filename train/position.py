"""How far a training is, as a part of its checkpoints."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Position:
    """How far a training is: `step` steps in all, `epoch` whole epochs, and `batch` batches of the next one.

    `order` has what the order of the samples depends on, where a GlobalBatchSampler decides it.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    order: dict[str, int | bool] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the position of a checkpoint."""
        numbers = [state[name] for name in ("step", "epoch", "batch")]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError(f"a position has whole numbers, got {numbers}")
        self.step, self.epoch, self.batch = numbers
        self.order = state["order"]
