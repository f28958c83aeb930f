"""Options of programs, read from the command line: those of every program, and how to declare more."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from .job.backend import BACKENDS
from .job.failure import TrainError
from .job.ranks import LAUNCHERS
from .job.rendezvous import FORMS

T = TypeVar("T")

LEARNING = "learning", "these decide the result, which is the same at any number of ranks"
RANKS = "ranks", "how the ranks find each other; under a launcher the defaults are enough"
OUTPUT = "output", "output files"
CHECKPOINTS = "checkpoints", "in --out of every host, with a checksum"
SECTIONS = (LEARNING, RANKS, OUTPUT, CHECKPOINTS)


def option(section: tuple[str, str], default: T, text: str, **argument: Any) -> T:
    """Declare a field: its default, its `section` and `text` in the help, and arguments of argparse."""
    declared: T = field(default=default, metadata={"section": section, "help": text, **argument})
    return declared


def broken(rules: Iterable[tuple[str, object, bool, str]]) -> list[str]:
    """Return one error line per violated rule; a rule is (option, value, whether it holds, what it asks)."""
    return [f"{name} must be {rule}, got {value}" for name, value, holds, rule in rules if not holds]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOptions:
    """How the ranks find each other: the options of every program of this package."""

    launcher: str = option(
        RANKS, "auto", "read rank and world size from this launcher's variables", choices=LAUNCHERS
    )
    spawn: int = option(RANKS, 0, "start this many ranks on this host, without a launcher; 0: none")
    init: str = option(RANKS, "auto", f"the rendezvous, where the ranks meet: {FORMS}")
    backend: str = option(
        RANKS,
        "auto",
        f"backend of torch.distributed: {' '.join(BACKENDS)}; auto is hccl with an Ascend NPU, nccl with a "
        "GPU, else gloo; default $MUSTER_BACKEND or auto",
    )
    timeout: float = option(RANKS, 300.0, "seconds to wait for other ranks, to join and in each collective")

    def __post_init__(self) -> None:
        if wrong := self.wrong():
            raise TrainError("\n".join(wrong))

    def wrong(self) -> list[str]:
        rules = (
            ("--spawn", self.spawn, self.spawn >= 0, "0 or more"),
            ("--timeout", self.timeout, 0 < self.timeout < 1e8, "above 0 and below 1e8"),
            ("--backend", self.backend, self.backend in BACKENDS, f"one of {' '.join(BACKENDS)}"),
        )
        return broken(rules)

    @property
    def patience(self) -> timedelta:
        return timedelta(seconds=self.timeout)


def parse(config: type[T], program: str, argv: Sequence[str], **defaults: object) -> T:
    """Build `config`, a dataclass of options, from a command line; a default of None means no default."""
    parser = _Parser(prog=program, description=config.__doc__, allow_abbrev=False)
    declared = {each.metadata["section"] for each in fields(config)}  # type: ignore[arg-type]  # a dataclass
    groups = {title: parser.add_argument_group(*title) for title in SECTIONS if title in declared}
    for each in fields(config):  # type: ignore[arg-type]
        argument = dict(each.metadata)
        group = groups[argument.pop("section")]
        names = (f"--{each.name.replace('_', '-')}", *argument.pop("also", ()))
        if isinstance(each.default, bool):
            group.add_argument(*names, action="store_true", **argument)
        else:
            group.add_argument(*names, default=each.default, **{"type": type(each.default), **argument})
    parser.set_defaults(**{name: value for name, value in defaults.items() if value is not None})
    # torch.distributed.launch adds this argument; LOCAL_RANK has the same number.
    parser.add_argument("--local-rank", "--local_rank", help=argparse.SUPPRESS)
    options = vars(parser.parse_args(argv))
    options.pop("local_rank")
    return config(**options)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise one line instead of printing the usage."""
        raise TrainError(f"{message} (see {self.prog} --help)")
