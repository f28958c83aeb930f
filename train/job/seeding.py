"""Random numbers that differ between the ranks, and are the same in every run."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_streams(seed: int, stream: int) -> None:
    """Seed the global generators of Python, numpy and torch, on all devices, for one of many streams.

    numpy's SeedSequence mixes both: with seed + stream, stream 1 of seed 0 would be stream 0 of seed 1.
    Raises ValueError if one is negative.
    """
    words = np.random.SeedSequence((seed, stream)).generate_state(4, np.uint64)
    random.seed(int(words[0]))
    np.random.seed(words[1:3].view(np.uint32))
    # Of torch's CPU generator, and those of every GPU or NPU. A DataLoader seeds its workers from it.
    torch.manual_seed(int(words[3]))
