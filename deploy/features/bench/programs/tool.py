"""What the tools have in common: their options, and how a process becomes a rank."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from muster.train.job.failure import fail_together
from muster.train.job.group import Job, process_group
from muster.train.job.hardware import use_fair_share_of_cores
from muster.train.job.ranks import Ranks
from muster.train.job.spawn import spawn
from muster.train.options import OUTPUT, RANKS, RankOptions, option, parse

C = TypeVar("C", bound=RankOptions)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolConfig(RankOptions):
    """Run on every rank of a job."""

    timeout: float = option(RANKS, 60.0, "seconds to wait for other ranks")
    json: bool = option(OUTPUT, False, "for programs: one JSON object instead of a table")


def report(bench: str, **values: object) -> None:
    """Print a line for programs."""
    sys.stdout.write(json.dumps({"bench": bench, **values}) + "\n")
    sys.stdout.flush()


def run(program: str, options: type[C], work: Callable[[Job, C], int]) -> None:
    """Run `work`, which must be importable, on every rank; each rank exits with the status that it returns.

    `program` is what the help calls the tool; its `options` come from the command line.
    """
    with fail_together():
        config = from_argv(program, options, sys.argv[1:], os.environ)
        if config.spawn:
            sys.exit(spawn(_be_rank, config.spawn, config, work))
        _be_rank(Ranks.from_env(os.environ, config.launcher), config, work)


def from_argv(program: str, options: type[C], argv: Sequence[str], environ: Mapping[str, str]) -> C:
    """Parse `argv`; raises TrainError for an option that is unknown or cannot be used."""
    return parse(options, program, argv, backend=environ.get("MUSTER_BACKEND") or None)


def _be_rank(ranks: Ranks, config: C, work: Callable[[Job, C], int]) -> None:
    with fail_together():
        use_fair_share_of_cores(ranks)
        with process_group(ranks, backend=config.backend, init=config.init, timeout=config.patience) as group:
            status = work(group, config)
        sys.exit(status)
