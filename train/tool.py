"""What the tools of this package have in common: who takes part, and how to choose that."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from .backend import BACKENDS, check_name
from .config import OUTPUT, RANKS, option, parse
from .errors import TrainError
from .failure import fail_together
from .group import Group, process_group
from .hardware import use_fair_share_of_cores
from .ranks import LAUNCHERS, Ranks
from .rendezvous import FORMS
from .spawn import spawn


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolConfig:
    """Run on every rank of a job; see --help of python -m muster.train for more on ranks."""

    launcher: str = option(RANKS, "auto", "whose variables say which rank this is", choices=LAUNCHERS)
    spawn: int = option(RANKS, 0, "start this many ranks on this host, without a launcher; 0: do not")
    init: str = option(RANKS, "auto", f"where the ranks meet: {FORMS}")
    backend: str = option(RANKS, "auto", f"{' '.join(BACKENDS)}; default $MUSTER_BACKEND or auto")
    timeout: float = option(RANKS, 60.0, "seconds to wait for other ranks")
    json: bool = option(OUTPUT, False, "for programs: one JSON object instead of a table")

    def __post_init__(self) -> None:
        reason = check_name(self.backend)
        if reason or self.spawn < 0 or not 0 < self.timeout < 1e8:
            raise TrainError(reason or "--spawn must be 0 or more, and --timeout above 0")

    @classmethod
    def from_argv(cls, program: str, argv: Sequence[str], environ: Mapping[str, str]) -> ToolConfig:
        """Parse `argv` for `program`; raises TrainError for what cannot be."""
        return parse(cls, program, argv, backend=environ.get("MUSTER_BACKEND") or None)


def run(program: str, work: Callable[[Group, ToolConfig], int]) -> None:
    """Run `work` on every rank; rank 0's exit status is the job's. `work` must be importable."""
    with fail_together():
        config = ToolConfig.from_argv(program, sys.argv[1:], os.environ)
        if config.spawn:
            sys.exit(spawn(_be_rank, config.spawn, config, work))
        _be_rank(Ranks.from_env(os.environ, config.launcher), config, work)


def _be_rank(ranks: Ranks, config: ToolConfig, work: Callable[[Group, ToolConfig], int]) -> None:
    with fail_together():
        use_fair_share_of_cores(ranks)
        patience = timedelta(seconds=config.timeout)
        with process_group(ranks, backend=config.backend, init=config.init, timeout=patience) as group:
            status = work(group, config)
        sys.exit(status)
