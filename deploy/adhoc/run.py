"""The same on many hosts at once; what fails names its hosts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty

from ..common.frames import Frame
from ..connect.channel import Channel
from ..connect.cluster import Cluster
from ..connect.fanout import on_every
from ..console.text import describe_code, status_of
from ..decode import NONSENSE

PING_SECONDS = 2.0
SILENCE_SECONDS = 10.0
TIMED_OUT, LOST = 124, 3  # timeout(1); a host that is not fit
TRANSFER_SECONDS = 600.0


@dataclass(frozen=True)
class Ran:
    """How a command ended on one host. Equal ones are shown as one."""

    status: int
    end: str
    """What to say of its end, empty for exit status 0."""
    output: str


def run(cluster: Cluster, argv: Sequence[str], seconds: float | None) -> dict[str, Ran]:
    """Run a command on every connected host; leaving the cluster's context ends what is left of it."""
    waiting = dict(cluster.channels)
    for channel in waiting.values():
        channel.post("run", argv=list(argv), limit=seconds)
    ended: dict[str, Ran] = {}
    asked = 0.0
    while waiting:
        if time.monotonic() - asked > PING_SECONDS:
            asked = time.monotonic()
            ended |= _silent(waiting)
        try:
            host, frame = cluster.events.get(timeout=PING_SECONDS)
        except Empty:
            continue
        if waiting.pop(host, None):
            ended[host] = _ran(frame)
    return {host: ended[host] for host in cluster.channels}


def clean(cluster: Cluster, age: float) -> dict[str, Frame]:
    """Remove what jobs older than `age` seconds have left; what was removed, what was kept, and the bytes."""

    def ask(channel: Channel) -> Frame:
        answer = channel.ask("clean", older=age, seconds=TRANSFER_SECONDS)
        return {name: answer[name] for name in ("removed", "kept", "freed")}

    return on_every(cluster, ask)


def _silent(waiting: dict[str, Channel]) -> dict[str, Ran]:
    """Ask whether they are there; those that have not answered for long are waited for no more."""
    silent = [host for host, channel in waiting.items() if channel.silent_for() > SILENCE_SECONDS]
    for host in silent:
        waiting.pop(host)
    for channel in waiting.values():
        channel.post("time")
    return {host: Ran(LOST, f"silent for {SILENCE_SECONDS:.0f} s", "") for host in silent}


def _ran(frame: Frame) -> Ran:
    if frame["event"] != "ran":
        return Ran(LOST, "the line to its keeper is gone", "")
    try:
        code, output, cut = int(frame["code"]), str(frame["output"]), int(frame["cut"])
        if cut:
            output += f"\n({cut} bytes more)\n"
        if frame["timed_out"]:
            return Ran(TIMED_OUT, "not over in time", output)
        return Ran(status_of(code), describe_code(code) if code else "", output)
    except NONSENSE:
        return Ran(LOST, "its keeper makes no sense", "")
