"""Starts ranks on this host without a launcher: `--spawn N`, by torch.multiprocessing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from torch.distributed import TCPStore
from torch.multiprocessing.spawn import ProcessExitedException, start_processes

from .failure import TrainError
from .ranks import Ranks

GRACE = 0.2  # seconds from the first failure to SIGTERM, and from that to SIGKILL, for the other ranks


def spawn(function: Callable[..., None], count: int, *arguments: Any) -> int:
    """Run `function(ranks, *arguments)` in `count` processes; returns the exit status of the first to fail.

    `function` must be importable. This process holds the store of the rendezvous, as torchrun's agent
    does, so that its port is free. When one rank fails, the others are ended.
    """
    ranks = Ranks.from_env(os.environ)
    if ranks.world_size > 1:
        raise TrainError(f"--spawn starts ranks of its own, but {ranks.launcher} started this as {ranks}")
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, use_libuv=False)
    context = start_processes(  # type: ignore[no-untyped-call]  # untyped in torch
        _be_a_rank, (count, store.port, function, arguments), count, join=False, start_method="spawn"
    )
    try:
        while not context.join(grace_period=GRACE):
            pass
    except ProcessExitedException as failure:
        how = failure.signal_name or f"exit status {failure.exit_code}"
        sys.stderr.write(f"error: rank {failure.error_index} of {count} was the first to fail: {how}\n")
        return failure.exit_code if failure.exit_code > 0 else 128 - failure.exit_code
    return 0


def _be_a_rank(index: int, count: int, port: int, function: Callable[..., None], arguments: Any) -> None:
    """Be one rank, with the variables that torchrun sets, for code that reads them."""
    ranks = Ranks(index, count, index, count, "spawn")
    os.environ |= {
        "RANK": str(index),
        "WORLD_SIZE": str(count),
        "LOCAL_RANK": str(index),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # Tells torch that the store exists already, and rank 0 need not open it.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    function(ranks, *arguments)
