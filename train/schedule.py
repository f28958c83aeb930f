"""The learning rate, as a function of the step alone."""

from __future__ import annotations

import math


def learning_rate(step: int, *, peak: float, warm_up: int, steps: int) -> float:
    """Return the rate for `step`, counted from 0: a line up to `peak` over `warm_up`, times a cosine to 0.

    The cosine is equation 5 of Loshchilov and Hutter, SGDR, 2017 (arXiv:1608.03983), without restarts; the
    warm-up is that of Goyal et al., 2017 (arXiv:1706.02677), section 2.2.
    """
    rising = min(1.0, (step + 1) / max(1, warm_up))
    falling = 0.5 * (1 + math.cos(math.pi * step / steps))
    return peak * rising * falling
