"""Runs a function on every rank of a job, whoever starts the ranks: `run(train)`."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, TypeVar

from .failure import fail_together, keep_records_in
from .group import TIMEOUT, out_folder, process_group
from .hardware import use_fair_share_of_cores
from .ranks import Ranks
from .spawn import spawn as spawn_ranks

T = TypeVar("T")


def run(
    function: Callable[..., T],
    *arguments: Any,
    spawn: int = 0,
    backend: str | None = None,
    init: str = "auto",
    timeout: timedelta = TIMEOUT,
    step_timeout: timedelta | None = None,
) -> T | None:
    """Call `function(job, *arguments)` on every rank of the job; returns what it returns on this rank.

    Under mpirun, torchrun, srun and the like this process is one of the ranks that the launcher started;
    otherwise it is the only rank. `spawn` above 0 starts so many ranks on this host instead, waits for them
    and returns None; `function` must be importable then, and the caller below `if __name__ == "__main__"`.
    `backend`, `init`, `timeout` and `step_timeout` are those of process_group.

    An exception ends the whole job at once, with its error on stderr. In a single process it goes to the
    caller, as in a notebook; so does SystemExit with the status of the first rank to fail, of `spawn`.
    """
    options = {"backend": backend, "init": init, "timeout": timeout, "step_timeout": step_timeout}
    if spawn:
        status = spawn_ranks(be_rank, spawn, function, arguments, options)
        if status:
            raise SystemExit(status)
        return None
    return be_rank(Ranks.from_env(os.environ), function, arguments, options)


def be_rank(
    ranks: Ranks, function: Callable[..., T], arguments: tuple[Any, ...], options: dict[str, Any]
) -> T:
    """Be one rank of the job, from joining the others to leaving them."""
    with nullcontext() if ranks.world_size == 1 else fail_together():
        keep_records_in(out_folder(os.environ), ranks.rank)
        use_fair_share_of_cores(ranks)
        with process_group(ranks, **options) as job:
            return function(job, *arguments)
