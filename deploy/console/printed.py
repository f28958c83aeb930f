"""The figures in the lines that programs print: step, loss, and how much is done. Pure."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

_STEP = re.compile(
    r"\b(?:step|iter|iteration)s?\b\W{0,3}(\d{1,12})(?: {0,2}(?:/|of) {0,2}(\d{1,12})\b)?", re.IGNORECASE
)
_EPOCH = re.compile(r"\bepoch\b\W{0,3}(\d{1,9}) {0,2}(?:/|of) {0,2}(\d{1,9})\b", re.IGNORECASE)
_LOSS = re.compile(r"\bloss\b\W{0,3}(-?\d+(?:\.\d*)?(?:e[-+]?\d+)?)", re.IGNORECASE)
LEAST_DONE = 0.01
"""Below this share of the work, start-up and warm-up dominate, so the remaining time is unknown."""


class PrintedFigures(NamedTuple):
    """The figures of a line; None for those that it does not have."""

    step: int | None = None
    loss: float | None = None
    done: float | None = None
    """The share of all steps, or of all epochs, from 0 to 1, if the line has their number."""


def figures_of(line: str) -> PrintedFigures:
    """The figures in `epoch 2/10 step 120/1000 loss 0.35`."""
    step, epoch, loss = _STEP.search(line), _EPOCH.search(line), _LOSS.search(line)
    done = _share(step[1], step[2]) if step and step[2] else None
    if epoch and (step is None or step[2]):
        # A line with epoch and step is about the epoch that runs; with an epoch alone, about one that ended.
        ended = str(int(epoch[1]) - 1) if step else epoch[1]
        done = (_share(ended, epoch[2]) or 0.0) + (done or 0.0) / max(1, int(epoch[2]))
    value = float(loss[1]) if loss else math.inf
    return PrintedFigures(
        int(step[1]) if step else None,
        value if math.isfinite(value) else None,
        min(done, 1.0) if done else None,
    )


def _share(number: str, total: str) -> float | None:
    return max(0, int(number)) / int(total) if int(total) else None


def seconds_left(done: float | None, seconds: float, *, before: float = 0.0) -> float | None:
    """The time until the end of a program that went from the share `before` to `done` in these seconds."""
    if done is None or done < LEAST_DONE or done <= before or seconds <= 0:
        return None
    return seconds * (1.0 - done) / (done - before)
