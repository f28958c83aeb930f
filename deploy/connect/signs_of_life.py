"""Asks hosts for signs of life, and cuts off a host that gives none."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from .channel import Channel
from .reports import Fed
from .requests.hosts import TIME

FROZEN_SECONDS, PING_SECONDS = 20.0, 2.0


@contextmanager
def signs_of_life(channels: Collection[Channel]) -> Iterator[None]:
    """Meanwhile, cut off hosts that are frozen, and report that among their own reports.

    A thread does it: what is sent to a frozen host keeps its sender waiting, until the host is cut off.
    """
    over = threading.Event()
    threading.Thread(target=_watch, args=([*channels], over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _watch(channels: list[Channel], over: threading.Event) -> None:
    while not over.wait(PING_SECONDS):
        for channel in channels[:]:
            silence = channel.silent_for()
            if silence > FROZEN_SECONDS:
                channels.remove(channel)
                text = f"silent for {FROZEN_SECONDS:.0f} s: frozen, or cut off from the network"
                channel.report(Fed(error=text))
                channel.give_up()
                channel.close()
            elif not silence:  # nothing is asked of it: so this cannot be kept waiting either
                channel.post(TIME)
