"""Starts ranks on this host without a launcher: `--spawn N`, by torch.multiprocessing."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

from torch.distributed import TCPStore
from torch.multiprocessing.spawn import ProcessExitedException, start_processes

from .failure import TrainError, fail_together
from .preemption import PREEMPTED, SIGNALS
from .ranks import Ranks

GRACE = 0.2  # seconds from the first failure to SIGTERM, and from that to SIGKILL, for the other ranks


def spawn(function: Callable[..., None], count: int, *arguments: Any) -> int:
    """Run `function(ranks, *arguments)` in `count` processes; returns the exit status of the first to fail.

    `function` must be importable. This process holds the store of the rendezvous, as torchrun's agent
    does, so that its port is free. When one rank fails, the others are ended. The signals that ask a training
    to save and end (preemption.py) go on to the ranks, and the status is then theirs, 75.
    """
    ranks = Ranks.from_env(os.environ)
    if ranks.world_size > 1:
        raise TrainError(f"--spawn starts ranks of its own, but {ranks.launcher} started this as {ranks}")
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, use_libuv=False)
    context = start_processes(  # type: ignore[no-untyped-call]  # untyped in torch
        _be_a_rank, (count, store.port, function, arguments), count, join=False, start_method="spawn"
    )
    try:
        with _signals_passed_on(context.processes):
            while not context.join(grace_period=GRACE):
                pass
    except ProcessExitedException as failure:
        how = failure.signal_name or f"exit status {failure.exit_code}"
        if failure.exit_code != PREEMPTED:
            sys.stderr.write(f"error: rank {failure.error_index} of {count} was the first to fail: {how}\n")
        return failure.exit_code if failure.exit_code > 0 else 128 - failure.exit_code
    return 0


@contextmanager
def _signals_passed_on(processes: Sequence[BaseProcess]) -> Iterator[None]:
    """Pass the signals of a preemption on in the block; outside the main thread Python has no handlers."""

    def pass_on(number: int, _: FrameType | None) -> None:
        for process in processes:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, pass_on) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
    with fail_together():  # also a single rank: an exception that leaves this process loses its status
        function(ranks, *arguments)
