"""The options of the demo: TrainConfig, built from the command line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..options import CHECKPOINTS, LEARNING, OUTPUT, RANKS, RankOptions, broken, option, parse
from ..reporting.outputs import wrong_steps
from .datasets import FORMS as FORMS_OF_DATA

# Variables that set the default of an option.
VARIABLES = (("MUSTER_OUT", "out"), ("MUSTER_BACKEND", "backend"))


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig(RankOptions):
    """Train a network on images: on any number of ranks with the same result."""

    data: str = option(LEARNING, "digits", f"{FORMS_OF_DATA}; a folder has one folder per class")
    epochs: int = option(LEARNING, 15, "passes over the training samples")
    batch_size: int = option(
        LEARNING, 64, "GLOBAL batch: samples per step of all ranks together, not of each"
    )
    lr: float = option(LEARNING, 0.05, "peak learning rate: reached after the warm-up, then a cosine to 0")
    warm_up: int = option(
        LEARNING, 1, "epochs in which the learning rate rises to its peak; at most half of all"
    )
    seed: int = option(LEARNING, 0, "decides the initial weights and the order of the samples")
    amp: bool = option(LEARNING, False, "compute in bfloat16 where that is safe (torch.autocast)")
    limit: int = option(LEARNING, 0, "train on only this many samples; 0: on all")

    step_timeout: float = option(
        RANKS, 0.0, "seconds to wait in each collective after the first step; 0: as before it"
    )

    clip: float = option(LEARNING, 0.0, "scale gradients down to this 2-norm over all weights; 0: do not")

    out: Path = option(
        OUTPUT,
        Path("runs/alone"),
        "directory of metrics.jsonl, checkpoints/ and errors/, default $MUSTER_OUT or runs/alone",
    )
    tensorboard: bool = option(OUTPUT, False, "also write the metrics for TensorBoard, to OUT/tensorboard")
    profile: str = option(
        OUTPUT,
        "",
        "profile these steps, such as 10:15: a trace and a table of each rank, in OUT/profile",
        metavar="FIRST:LAST",
    )
    log_every: int = option(OUTPUT, 10, "steps between two lines of OUT/steps.jsonl; 0: none")

    save_every: int = option(CHECKPOINTS, 0, "steps between checkpoints; 0: only at the end of every epoch")
    keep: int = option(CHECKPOINTS, 3, "how many checkpoints to keep: the newest")
    resume: str = option(
        CHECKPOINTS,
        "",
        "continue from a checkpoint: auto, the newest complete one that any host has in --out; if-any, the "
        "same, or from the beginning where there is none, as a restarted job does; or the path of a "
        "checkpoint or of another run",
    )

    def wrong(self) -> list[str]:
        rules = (
            ("--epochs", self.epochs, self.epochs >= 1, "at least 1"),
            ("--batch-size", self.batch_size, self.batch_size >= 1, "at least 1"),
            ("--lr", self.lr, 0 < self.lr < math.inf, "above 0"),
            ("--warm-up", self.warm_up, self.warm_up >= 0, "0 or more"),
            ("--seed", self.seed, 0 <= self.seed < 2**32, "from 0 to 4294967295"),
            ("--limit", self.limit, self.limit >= 0, "0 or more"),
            ("--step-timeout", self.step_timeout, 0 <= self.step_timeout < 1e8, "0 or more, and below 1e8"),
            ("--clip", self.clip, 0 <= self.clip < math.inf, "0 or more"),
            ("--save-every", self.save_every, self.save_every >= 0, "0 or more"),
            ("--log-every", self.log_every, self.log_every >= 0, "0 or more"),
            ("--keep", self.keep, self.keep >= 1, "at least 1"),
        )
        return [*broken(rules), *wrong_steps(self.profile), *RankOptions.wrong(self)]

    @classmethod
    def from_argv(cls, argv: Sequence[str], environ: Mapping[str, str]) -> TrainConfig:
        """Parse `argv`, without the program's name; VARIABLES are defaults.

        Raises TrainError for an unknown option, or a value that is malformed or out of range.
        """
        given = {option: environ[variable] for variable, option in VARIABLES if environ.get(variable)}
        return parse(cls, "python -m muster.train", argv, **given)
