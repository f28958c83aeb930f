"""What the user may choose: TrainConfig, built from the command line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import NoReturn

from train.errors import TrainError

BACKENDS = ("auto", "gloo", "mpi", "nccl")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Everything that decides the result; the same on every rank."""

    epochs: int = field(default=15, metadata={"help": "passes over the training digits"})
    batch_size: int = field(
        default=64, metadata={"help": "GLOBAL batch: digits per step of all ranks together, not of each"}
    )
    lr: float = field(
        default=0.05, metadata={"help": "peak learning rate: reached in the first epoch, then a cosine to 0"}
    )
    seed: int = field(default=0, metadata={"help": "of the initial weights and of the order of the digits"})
    backend: str = field(
        default="auto",
        metadata={"help": "default $MUSTER_BACKEND or auto: nccl with a GPU, else gloo", "choices": BACKENDS},
    )
    dtype: str = field(
        default="float32", metadata={"help": "of weights and images", "choices": ("float32", "float64")}
    )
    limit: int = field(default=0, metadata={"help": "train on this many digits only; 0: on all"})
    out: Path = field(
        default=Path("runs/alone"),
        metadata={"help": "directory of metrics.jsonl and checkpoint.pt, default $MUSTER_OUT or runs/alone"},
    )
    resume: Path | None = field(
        default=None, metadata={"help": "checkpoint to continue from; only rank 0 reads it", "type": Path}
    )

    def __post_init__(self) -> None:
        rules = (
            ("--backend", self.backend, self.backend in BACKENDS, f"one of {', '.join(BACKENDS)}"),
            ("--epochs", self.epochs, self.epochs >= 1, "at least 1"),
            ("--batch-size", self.batch_size, self.batch_size >= 1, "at least 1"),
            ("--lr", self.lr, 0 < self.lr < math.inf, "above 0"),
            ("--seed", self.seed, 0 <= self.seed < 2**32, "from 0 to 4294967295"),
            ("--limit", self.limit, self.limit >= 0, "0 or more"),
        )
        wrong = [f"{name} must be {rule}, got {value}" for name, value, holds, rule in rules if not holds]
        if wrong:
            raise TrainError("\n".join(wrong))

    @classmethod
    def from_argv(cls, argv: Sequence[str], environ: Mapping[str, str]) -> TrainConfig:
        """Parse `argv`, without the program's name; MUSTER_OUT and MUSTER_BACKEND are defaults.

        Raises TrainError for an unknown option, a bad value or one out of range.
        """
        parser = _Parser(prog="python -m train", description=cls.__doc__, allow_abbrev=False)
        for each in fields(cls):
            name = f"--{each.name.replace('_', '-')}"
            parser.add_argument(name, default=each.default, **{"type": type(each.default), **each.metadata})
        if environ.get("MUSTER_OUT"):
            parser.set_defaults(out=Path(environ["MUSTER_OUT"]))
        if environ.get("MUSTER_BACKEND"):
            parser.set_defaults(backend=environ["MUSTER_BACKEND"])
        # torch.distributed.launch adds this argument to say what LOCAL_RANK says too.
        parser.add_argument("--local-rank", "--local_rank", help=argparse.SUPPRESS)
        options = vars(parser.parse_args(argv))
        options.pop("local_rank")
        return cls(**options)

    def as_text(self) -> dict[str, str]:
        """Return the options as text, to keep beside a result."""
        return {name: str(value) for name, value in asdict(self).items()}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Replace argparse's usage text by one line."""
        raise TrainError(f"{message} (see {self.prog} --help)")
