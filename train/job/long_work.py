"""Work of one rank that may take longer than a collective may wait: the others wait for it at a store.

A rank that waits in a collective gives up after `--timeout`. But a checkpoint of hundreds of gigabytes may
take longer to write, hash or copy, with nothing wrong. So where only some ranks work, the others wait here,
outside of any collective, for as long as those that work show that they live.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from torch.distributed import Store

from .failure import TrainError
from .group import Job

BEATS = 10  # signs of life of a rank that works, in the time after which the others give up
SHORTEST, LONGEST = 0.005, 0.5  # seconds between two looks of a rank that waits
SHARE = 0.1  # of the time for which it has waited: its last pause adds no more than that


@contextmanager
def others_wait(group: Job) -> Iterator[None]:
    """Let each rank work in the block as long as it needs; then wait until all have left theirs.

    Every rank must call it. Raises TrainError if for the time-out of the group no rank shows that it works.
    If the block raises, this does not wait: the job ends, or every rank handles the exception.
    """
    round_number = next(group.long_works)
    name = f"muster/long-work/{round_number}"
    left = threading.Event()
    beating = threading.Thread(target=_beat, args=(group.store, name, group.timeout, left), daemon=True)
    beating.start()
    try:
        yield
    finally:
        left.set()
        beating.join()
    if group.store.add(f"{name}/done", 1) == group.world_size:
        for key in ("alive", "done", "all-done"):  # of a round that every rank has left
            group.store.delete_key(f"muster/long-work/{round_number - 1}/{key}")
        group.store.set(f"{name}/all-done", "")
    _wait(group.store, name, group.timeout)
    group.barrier()  # rank 0, whose process may hold the store, must not end before the others have asked it


def _beat(store: Store, name: str, timeout: timedelta, left: threading.Event) -> None:
    """Count up a number at the store while this rank works; short work ends before the first count."""
    while not left.wait(timeout.total_seconds() / BEATS):
        store.add(f"{name}/alive", 1)


def _wait(store: Store, name: str, timeout: timedelta) -> None:
    """Wait for the last rank while other ranks still count; ask less and less often."""
    began = seen_at = time.monotonic()
    seen = -1
    while not store.check([f"{name}/all-done"]):
        alive = store.add(f"{name}/alive", 0)
        if alive != seen:
            seen, seen_at = alive, time.monotonic()
        elif time.monotonic() - seen_at > timeout.total_seconds():
            raise TrainError(
                f"waiting for other ranks, none of which has shown a sign of life for "
                f"{timeout.total_seconds():.0f} s: look for a host that is frozen or unreachable"
            )
        time.sleep(min(max(SHORTEST, SHARE * (time.monotonic() - began)), LONGEST))
